# One regular expression a line, each meaning exactly one spec (./verify).
# Pods: logs, exec, init and ephemeral containers, hooks, identity.
Kubelet when scheduling a busybox command in a pod should print the output to logs
Pods should support retrieving logs from the container over websockets
Pods should support remote command execution over websockets
Pods should be submitted and removed
InitContainer .* should invoke init containers on a RestartNever pod
Ephemeral Containers .* will start an ephemeral container in an existing pod
should execute poststart exec hook properly
KubeletManagedEtcHosts should test kubelet managed /etc/hosts file
Downward API should provide pod name, namespace and IP address as env vars
should run the container with uid 65534
should not allow privilege escalation when false
# Probes.
Probing container should be restarted with a /healthz http liveness probe
Probing container with readiness probe should not be ready before initial delay and never restart
# Volumes.
\] ConfigMap should be consumable from pods in volume \[NodeConformance
\] Secrets should be consumable from pods in volume as non-root with defaultMode and fsGroup set
Projected combined should project all components
EmptyDir volumes should support \(non-root,0666,tmpfs\)
EmptyDir volumes should support \(root,0644,default\)
EmptyDir volumes pod should support shared volumes between containers
PersistentVolumes CSI Conformance should run through the lifecycle of a PV and a PVC
# Services, DNS, the network between pods.
DNS should provide DNS for the cluster
DNS should provide DNS for services
API Server should provide secure master service
Services should serve a basic endpoint from pods
Services should be able to create a functioning NodePort service
should create Endpoints and EndpointSlices for Pods matching a Service
Pods should function for intra-pod communication: http
should function for node-pod communication: http
# Controllers.
RollingUpdateDeployment should delete old pods and create new ones
ReplicaSet should serve a basic image on each replica
StatefulSet .* should have a working scale subresource
Job should run a job to completion when tasks sometimes fail and are locally restarted
Job should create pods for an Indexed job
Garbage collector should delete RS created by deployment when not orphaning
# Extension of the API, admission, quota.
creating/deleting custom resource definition objects works
CustomResourcePublishOpenAPI .* works for CRD with validation schema
should be able to convert from CR v1 to CR v2
AdmissionWebhook .* should be able to deny pod and configmap creation
ValidatingAdmissionPolicy .* should validate against a Deployment
ResourceQuota should create a ResourceQuota and capture the life of a pod\.
Watchers should observe add, update, and delete watch notifications on configmaps
# Identity and rights.
ServiceAccounts should mount an API token into pods
SubjectReview should support SubjectReview API operations
# kubectl.
Kubectl logs logs should be able to retrieve and filter logs
Kubectl run pod should create a pod from an image
