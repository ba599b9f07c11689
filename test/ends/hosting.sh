#!/bin/sh
# Makes guest.conf, the kubeconfig of a user who may only edit the namespace guests.
set -e
kubectl create namespace guests
kubectl create serviceaccount guest -n guests
kubectl create rolebinding guest -n guests --clusterrole=edit --serviceaccount=guests:guest
token=$(kubectl create token guest -n guests --duration=4h)
umask 077
cp "$KUBECONFIG" guest.conf
export KUBECONFIG=guest.conf
kubectl config set-credentials guest --token="$token"
kubectl config set-context --current --user=guest --namespace=guests
kubectl config view --minify --flatten >guest.new
mv guest.new guest.conf
