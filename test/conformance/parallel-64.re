# A selection over every area of the suite, of specs that may run side by side: one
# regular expression a line, each meaning exactly one spec (./verify).
Kubelet when scheduling a busybox command in a pod should print the output to logs
Pods should support retrieving logs from the container over websockets
Pods should support remote command execution over websockets
Probing container should be restarted with a exec "cat /tmp/health" liveness probe
Probing container with readiness probe that fails should never be ready and never restart
InitContainer \[NodeConformance\] should invoke init containers on a RestartNever pod
should execute poststart exec hook properly
Ephemeral Containers \[NodeConformance\] will start an ephemeral container
should run the container with uid 65534
should not allow privilege escalation when false
should provide pod name, namespace and IP address as env vars
should test kubelet managed /etc/hosts file
should succeed in writing subpaths in container
should run with the expected status
Sysctls .* should support sysctls
PreStop should call prestop when killing a pod
ConfigMap updates should be reflected in volume
Secrets should be consumable from pods in volume with defaultMode set
Projected downwardAPI should provide container's memory limit
should project all components that make up the projection API
EmptyDir volumes should support \(non-root,0666,tmpfs\)
EmptyDir volumes should support \(root,0644,default\)
Atomic writer volumes should support subpaths with configmap pod \[Conformance\]
DNS should provide DNS for the cluster
DNS should provide DNS for services
intra-pod communication: http
intra-pod communication: udp
node-pod communication: http
Services should serve a basic endpoint from pods
should be able to create a functioning NodePort service
should have session affinity work for service with type clusterIP
should be able to change the type from ExternalName to ClusterIP
should create Endpoints and EndpointSlices for Pods matching a Service
no conflict between pods with same hostPort but different hostIP
should proxy through a service and a pod
should serve endpoints on same port and different protocols
RollingUpdateDeployment should delete old pods and create new ones
deployment should support proportional scaling
ReplicaSet should serve a basic image on each replica
should perform rolling updates and roll backs of template modifications
Job should run a job to completion when tasks sometimes fail and are locally restarted
Job should delete a job
CronJob should schedule multiple jobs concurrently
should block an eviction until the PDB is updated
creating/deleting custom resource definition objects works
CustomResourcePublishOpenAPI .* works for CRD with validation schema
should be able to convert from CR v1 to CR v2
AdmissionWebhook .* should mutate custom resource \[Conformance\]
should be able to deny pod and configmap creation
Should be able to support the .* API Server using the current Aggregator
Garbage collector should delete pods created by rc when not orphaning
Garbage collector should not be blocked by dependency circle
capture the life of a pod\.
ValidatingAdmissionPolicy .* should validate against a Deployment
should observe add, update, and delete watch notifications on configmaps
should return chunks of results for list calls
ServiceAccounts should mount an API token into pods
should support OIDC discovery of service account issuer
Certificates API .* should support CSR API operations
should create a LimitRange with defaults
should create and stop a working application
kubectl describe prints relevant information for rc and pods
Update Demo should scale a replication controller
should have at least two untainted nodes
