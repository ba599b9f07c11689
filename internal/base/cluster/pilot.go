package cluster

// The record of a pilot, which is a job whose nodes join the cluster, is a ConfigMap in the
// namespace kube-system with the label PilotLabel. These are keys of its data. One more ConfigMap
// with the label, ElasticName, has the number of nodes of other jobs that the cluster takes
// (ElasticSeats).
const (
	PilotLabel   = "slurm.berth.dev/pilot-of"
	ElasticName  = "berth-elastic"
	ElasticSeats = "seats"
	PilotRequest = "request"
	PilotJob     = "job"
	PilotState   = "state"
	PilotReason  = "reason"
	PilotStart   = "start"
	PilotHosts   = "hosts"
	PilotLeaving = "leaving"
)
