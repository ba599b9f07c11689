package control

import (
	_ "embed"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/internal/base/cluster"
)

//go:embed slurmpods.yaml
var slurmPods []byte

// addSlurmPods adds the policy that changes pods of manifests for other systems, where pods can
// have nodes of other jobs.
func (s *seeder) addSlurmPods(plan cluster.Plan) error {
	if plan.Seats == 0 {
		return nil
	}
	policy := &admissionv1.MutatingAdmissionPolicy{}
	if err := yaml.UnmarshalStrict(slurmPods, policy); err != nil {
		return fmt.Errorf("read the policy for pods of other systems: %w", err)
	}
	policy.ObjectMeta = addonMeta("", policy.Name)
	for i := range policy.Spec.Variables {
		if policy.Spec.Variables[i].Name == "gated" && !plan.SubmitsPilots {
			policy.Spec.Variables[i].Expression = "false" // nobody would open the gate
		}
	}
	policy.Generation = 1
	s.add("mutatingadmissionpolicies/"+policy.Name, policy)
	binding := &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: addonMeta("", policy.Name), Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name},
	}
	binding.Generation = 1
	s.add("mutatingadmissionpolicybindings/"+binding.Name, binding)
	return nil
}
