#!/bin/sh
exec /srv/ends/dist/bin/berth run -- kubectl get nodes -o name
