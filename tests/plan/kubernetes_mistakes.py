"""Mistakes that a Kubernetes cluster would refuse, or accept and never run: what we say, and what is right instead.

test_check_kubernetes.py asks the plan, tests/k8s/test_manifest.py has a real API server take what is right.
"""

from __future__ import annotations

from typing import NamedTuple

from launcher.issue import Severity

FITS = "dsv3_128gpu_fits"
E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE
K, P, C = "target.kubernetes", "fabric.pod.spec", "fabric.pod.spec.containers.trainer"
POOL = "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"


class Mistake(NamedTuple):
    words: str
    """What is typed beside the experiment and target=kubernetes, as in a shell."""
    code: str
    field: str
    message: str
    """Part of what we say."""
    hint: str
    """Part of the hint."""
    right: str
    """Words that take the place of the wrong ones, with which nothing is said of that field."""
    severity: Severity = E
    experiment: str = FITS


def trainer(text: str) -> str:
    """Words that patch the trainer's container."""
    return f"'{P}.containers=[{{name: trainer, {text}}}]'"


MISTAKES = [
    # Names: DNS-1035 with room for the pods' own (JobSet's webhook).
    Mistake("name=128gpu", "KUBERNETES_NAME", "name", "begins with a letter", "type name=run-128gpu", "name=run-128gpu"),
    Mistake("name=_dsv3", "NAME", "name", "a letter or digit first", "type name=dsv3", "name=dsv3"),
    Mistake("name=0_0", "KUBERNETES_NAME", "name", "begins with a letter", "type name=run-0-0", "name=run-0-0"),
    Mistake(
        f"name={'a' * 40} {K}.layout=job_per_domain {K}.queue=null nodes=2048 mesh.dcn.data=16 mesh.dcn.fsdp=8 trainer.workarounds=[te_data_axis]", "KUBERNETES_NAME", "name",
        "64 characters of at most 63", f"type name={'a' * 39}",
        f"name={'a' * 39} {K}.layout=job_per_domain {K}.queue=null nodes=2048 mesh.dcn.data=16 mesh.dcn.fsdp=8 trainer.workarounds=[te_data_axis]",
    ),
    Mistake(f"{K}.namespace=My.Team", "KUBERNETES_WORD", f"{K}.namespace", "small letters", f"{K}.namespace=null", f"{K}.namespace=my-team"),
    Mistake(f"{K}.context=' '", "KUBERNETES_WORD", f"{K}.context", "empty", f"{K}.context=null", f"{K}.context=null"),
    Mistake(f"{K}.claim=My_Claim", "KUBERNETES_WORD", f"{K}.claim", "wanted small letters", f"{K}.claim=launcher-runs", f"{K}.claim=my-claim"),
    Mistake(f"{K}.claim=null", "KUBERNETES_CLAIM", f"{K}.claim", "would be lost", f"{K}.claim=NAME", f"{K}.claim=runs"),
    Mistake(f"{K}.service_account=Job_SA", "KUBERNETES_WORD", f"{K}.service_account", "Job_SA", f"{K}.service_account=null", f"{K}.service_account=job-sa"),
    Mistake(f"{K}.image_pull_secrets=[a_b]", "KUBERNETES_WORD", f"{K}.image_pull_secrets", "a_b", "[NAME]", f"{K}.image_pull_secrets=[a-b]"),
    Mistake(f"{K}.queue={'q' * 64}", "KUBERNETES_WORD", f"{K}.queue", "qqq", f"{K}.queue=null", f"{K}.queue=gb200"),
    Mistake(f"{K}.priority_class=High_Prio", "KUBERNETES_WORD", f"{K}.priority_class", "High_Prio", "=null", f"{K}.priority_class=high"),
    Mistake(f"{K}.priority_class=high {K}.queue=null", "KUBERNETES_PRIORITY", f"{K}.priority_class", "no queue", f"{K}.queue=NAME", f"{K}.priority_class=high"),
    Mistake(f"{K}.topology='rack label'", "KUBERNETES_WORD", f"{K}.topology", "rack label", "=null", f"{K}.topology=nvidia.com/gpu.clique"),
    Mistake(f"{K}.topology_block=a/b/c", "KUBERNETES_WORD", f"{K}.topology_block", "a/b/c", "=null", f"{K}.topology_block=b/c"),
    # Placement: Kueue's rules, and what nobody would notice before the first step is slow.
    Mistake(f"{K}.layout=racks", "KUBERNETES_LAYOUT", f"{K}.layout", "one_job, job_per_domain", f"{K}.layout=one_job", f"{K}.layout=one_job"),
    Mistake(f"{K}.layout=job_per_domain", "KUBERNETES_LAYOUT_QUEUE", f"{K}.queue", "wait for both", f"{K}.queue=null", f"{K}.layout=job_per_domain {K}.queue=null", W),
    Mistake(
        f"{K}.layout=job_per_domain {K}.queue=null {K}.topology=null", "KUBERNETES_TOPOLOGY", f"{K}.topology", "not named",
        f"{K}.topology=nvidia.com/gpu.clique", f"{K}.layout=job_per_domain {K}.queue=null {K}.topology=rack",
    ),
    Mistake(f"{K}.topology_block=nvidia.com/gpu.clique", "KUBERNETES_TOPOLOGY", f"{K}.topology_block", "both", "=null", f"{K}.topology_block=block"),
    Mistake(f"{K}.queue=null", "KUBERNETES_PLACEMENT", f"{K}.queue", "in one rack", "layout=job_per_domain", f"{K}.queue=null {K}.layout=job_per_domain", W),
    Mistake(f"{K}.topology=null", "KUBERNETES_PLACEMENT", f"{K}.topology", "16 nodes", "gpu.clique", f"{K}.topology=rack", W),
    Mistake(f"{K}.compute_domain_nodes=16", "KUBERNETES_DOMAIN_NODES", f"{K}.compute_domain_nodes", "32 nodes", "=0", f"{K}.compute_domain_nodes=32"),
    Mistake(f"{K}.compute_domain_nodes=-1", "KUBERNETES_NUMBER", f"{K}.compute_domain_nodes", "wanted 0 to", "=0", f"{K}.compute_domain_nodes=0"),
    Mistake(f"{K}.compute_domain=false", "KUBERNETES_IMEX", f"{K}.compute_domain", "16 nodes", "=true", "", N),
    Mistake("", "KUBERNETES_DOMAIN_SHARED", f"{K}.compute_domain", "less than a rack", "into that rack", f"{K}.compute_domain=false", N, "qwen3_30b_a3b_16gpu"),
    Mistake("nodes=36 mesh.ici.fsdp=9", "KUBERNETES_FULL_RACK", "mesh.ici", "18 nodes a rack", "16 nodes", "", N),
    # Numbers and quantities.
    Mistake(f"{K}.shm_gib=0", "KUBERNETES_NUMBER", f"{K}.shm_gib", "wanted 1", "=32", f"{K}.shm_gib=8"),
    Mistake(f"{K}.ttl_seconds=-1", "KUBERNETES_NUMBER", f"{K}.ttl_seconds", "wanted 0", "=null", f"{K}.ttl_seconds=0"),
    Mistake(f"{K}.ttl_seconds=3000000000", "KUBERNETES_NUMBER", f"{K}.ttl_seconds", "2147483647", "=null", f"{K}.ttl_seconds=604800"),
    Mistake(f"{K}.active_deadline_seconds=0", "KUBERNETES_NUMBER", f"{K}.active_deadline_seconds", "wanted 1", "=null", f"{K}.active_deadline_seconds=3600"),
    Mistake(f"{K}.cpu='140 cores'", "KUBERNETES_QUANTITY", f"{K}.cpu", "140 cores", "=140", f"{K}.cpu=140"),
    Mistake(f"{K}.cpu=0", "KUBERNETES_QUANTITY", f"{K}.cpu", "processors", "=null", f"{K}.cpu=500m"),
    Mistake(f"{K}.memory_gib=0", "KUBERNETES_NUMBER", f"{K}.memory_gib", "wanted 1", "=null", f"{K}.memory_gib=800"),
    Mistake(f"{K}.memory_gib=700", "KUBERNETES_MEMORY_SHORT", f"{K}.memory_gib", "784 GiB", "=784", f"{K}.memory_gib=784", W),
    Mistake(f"{K}.memory_gib=1000", "KUBERNETES_MEMORY", f"{K}.memory_gib", "has 894 GiB", "=null", ""),
    Mistake(f"{POOL}=210", "KUBERNETES_MEMORY", f"{K}.memory_gib", "904 GiB", f"{POOL}=207", f"{POOL}=207"),
    Mistake("monitor.max_failures=-1", "NUMBER_RANGE", "monitor.max_failures", "wanted 0", "monitor.max_failures=1", "monitor.max_failures=0"),
    Mistake("trainer.stop_grace_seconds=-1", "NUMBER_RANGE", "trainer.stop_grace_seconds", "wanted 0", "=1", "trainer.stop_grace_seconds=0"),
    # Storage, image, start.
    Mistake(f"{K}.mount=runs", "KUBERNETES_MOUNT", f"{K}.mount", "absolute", "=/runs", f"{K}.mount=/data/runs"),
    Mistake(f"{K}.mount=/", "KUBERNETES_MOUNT", f"{K}.mount", "below /", "=/runs", f"{K}.mount=/r"),
    Mistake(f"{K}.mount=/etc/launcher", "KUBERNETES_MOUNT", f"{K}.mount", "lies over", "=/runs", f"{K}.mount=/etc/runs"),
    Mistake(f"{K}.mount=/dev/shm/runs", "KUBERNETES_MOUNT", f"{K}.mount", "lies over", "=/runs", f"{K}.mount=/mnt"),
    Mistake(f"\"{K}.mount='/a:b'\"", "KUBERNETES_MOUNT", f"{K}.mount", "/a:b", "=/runs", f"{K}.mount=/a-b"),
    Mistake("container=none", "KUBERNETES_IMAGE", "container.image", "no image", "container=nvidia_maxtext", "container=nvidia_maxtext"),
    Mistake("container.image=/images/jax.sqsh", "KUBERNETES_IMAGE", "container.image", "pyxis", "REGISTRY", "container.image=docker://ghcr.io/nvidia/jax:a"),
    Mistake('"container.image=\'ghcr.io#nvidia/jax:a\'"', "KUBERNETES_IMAGE", "container.image", "pyxis", "REGISTRY", "container.image=ghcr.io/nvidia/jax:a"),
    Mistake("container.image=ghcr.io/nvidia/JAX:a", "KUBERNETES_IMAGE", "container.image", "JAX", "REGISTRY", "container.image=localhost:5000/jax"),
    Mistake("'container.mounts=[/lustre:/lustre]'", "KUBERNETES_MOUNTS", "container.mounts", "not folders of the node", "container.mounts=[]", ""),
    Mistake("container.import_folder=/images", "KUBERNETES_IMPORT", "container.import_folder", "for SLURM", "=null", "", W),
    Mistake("container.workdir=src", "KUBERNETES_WORKDIR", "container.workdir", "absolute", "=null", "container.workdir=/opt/src"),
    Mistake("checkpoint.directory=/lustre/ckpt", "KUBERNETES_PATH", "checkpoint.directory", "lost with the pod", "=null", "checkpoint.directory=/runs/ckpt", W),
    Mistake("checkpoint.load_parameters_path=/weights/0/items", "KUBERNETES_PATH", "checkpoint.load_parameters_path", "in the image", "/runs/...", "checkpoint.load_parameters_path=gs://b/0/items", W),
    Mistake("trainer.start=autodetect", "KUBERNETES_START", "trainer.start", "SLURM", "trainer.start=env", "trainer.start=env"),
    # Secrets: by reference, and never shown.
    Mistake("env.secrets=[HF_TOKEN]", "KUBERNETES_SECRET", f"{K}.secrets", "not get it from your shell", f"{K}.secrets.HF_TOKEN=NAME/KEY", f"env.secrets=[HF_TOKEN] {K}.secrets.HF_TOKEN=hf/token"),
    Mistake(f"env.secrets=[HF_TOKEN] {K}.secrets.HF_TOKEN=opensesame", "KUBERNETES_SECRET", f"{K}.secrets.HF_TOKEN", "SECRET/KEY", "NAME/KEY", f"env.secrets=[HF_TOKEN] {K}.secrets.HF_TOKEN=hf/t.0_k"),
    Mistake(f"env.secrets=[HF_TOKEN] {K}.secrets.HF_TOKEN=My_Secret/token", "KUBERNETES_SECRET", f"{K}.secrets.HF_TOKEN", "SECRET/KEY", "NAME/KEY", ""),
    Mistake(f"{K}.secrets.HF_TOKEN=hf/token", "KUBERNETES_SECRET_UNUSED", f"{K}.secrets.HF_TOKEN", "not read", "env.secrets=[HF_TOKEN]", "", W),
    Mistake(trainer("env: [{name: HF_TOKEN, value: opensesame}]"), "KUBERNETES_SECRET", f"{C}.env.HF_TOKEN", "for all to read", "env.secrets=[HF_TOKEN]", trainer("env: [{name: HF_TOKEN_FILE, value: /x}]")),
    # Nodes.
    Mistake(f"'{K}.node_selector={{a/b/c: x}}'", "KUBERNETES_POD", f"{K}.node_selector.a/b/c", "cannot be a label", "PREFIX", f"'{K}.node_selector={{b/c: x}}'"),
    Mistake(f"'{K}.node_selector={{pool: a b}}'", "KUBERNETES_POD", f"{K}.node_selector.pool", "'a b'", "63 letters", f"'{K}.node_selector={{pool: a.b}}'"),
    Mistake(f"'{K}.node_selector={{pool: 12}}'", "KUBERNETES_POD", f"{K}.node_selector.pool", "wanted text", 'write "12"', f"'{K}.node_selector={{pool: \"12\"}}'"),
    Mistake(f"'{K}.tolerations=[{{key: a, operator: Exist}}]'", "KUBERNETES_POD", f"{K}.tolerations", "Equal or Exists", "Exists", f"'{K}.tolerations=[{{key: a, operator: Exists}}]'"),
    Mistake(f"'{K}.tolerations=[{{key: a, effect: NoSchedul}}]'", "KUBERNETES_POD", f"{K}.tolerations", "NoSchedul", "effect: NoSchedule", f"'{K}.tolerations=[{{key: a, effect: NoSchedule}}]'"),
    Mistake(f"'{K}.tolerations=[{{key: a, operator: Exists, value: b}}]'", "KUBERNETES_POD", f"{K}.tolerations", "Exists with", "leave value out", f"'{K}.tolerations=[{{key: a, value: b}}]'"),
    Mistake(f"'{K}.tolerations=[{{effect: NoSchedule}}]'", "KUBERNETES_POD", f"{K}.tolerations", "any taint", "add a key", f"'{K}.tolerations=[{{operator: Exists}}]'"),
    Mistake(f"'{K}.tolerations=[{{key: a, operator: Exists, tolerationSeconds: 5}}]'", "KUBERNETES_POD", f"{K}.tolerations", "NoExecute", "leave", f"'{K}.tolerations=[{{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 5}}]'"),
    Mistake(f"'{K}.tolerations=[{{key: a, operatr: Exists}}]'", "KUBERNETES_POD", f"{K}.tolerations", "no field operatr", "did you mean operator?", ""),
    # The fabric's patch of the pod.
    Mistake("fabric.pod.hostNetwork=true", "KUBERNETES_POD", "fabric.pod.hostNetwork", "metadata and spec", "fabric.pod.spec.hostNetwork", "fabric=oke"),
    Mistake(f"{P}.hostNetwrk=true", "KUBERNETES_POD", f"{P}.hostNetwrk", "no field", "hostNetwork", "fabric=oke"),
    Mistake(f"{P}.hostNetwork=true", "KUBERNETES_POD_DNS", f"{P}.dnsPolicy", "coordinator", "ClusterFirstWithHostNet", f"{P}.hostNetwork=true {P}.dnsPolicy=ClusterFirstWithHostNet"),
    Mistake(f"{P}.hostNetwork=\"'yes'\"", "KUBERNETES_POD", f"{P}.hostNetwork", "true or false", "true or false", "fabric=oke"),
    Mistake(f"{P}.dnsPolicy=ClusterFist", "KUBERNETES_POD", f"{P}.dnsPolicy", "ClusterFist", "ClusterFirst", f"{P}.dnsPolicy=ClusterFirst"),
    Mistake(f"{P}.restartPolicy=OnFailure", "KUBERNETES_POD_OURS", f"{P}.restartPolicy", "set by", "leave", ""),
    Mistake(f"{P}.terminationGracePeriodSeconds=30", "KUBERNETES_POD_OURS", f"{P}.terminationGracePeriodSeconds", "set by", "trainer.stop_grace_seconds", "trainer.stop_grace_seconds=30"),
    Mistake(f"{P}.activeDeadlineSeconds=0", "KUBERNETES_POD", f"{P}.activeDeadlineSeconds", "1 or more", "1", f"{P}.activeDeadlineSeconds=60"),
    Mistake(f"'{P}.volumes=[{{name: shm, emptyDir: {{}}}}]'", "KUBERNETES_POD_OURS", f"{P}.volumes", "the launcher's", "another name", f"'{P}.volumes=[{{name: tmp, emptyDir: {{}}}}]'"),
    Mistake(f"'{P}.volumes=[{{name: tmp}}]'", "KUBERNETES_POD", f"{P}.volumes.tmp", "no source", "emptyDir", f"'{P}.volumes=[{{name: tmp, emptyDir: {{}}}}]'"),
    Mistake(f"'{P}.volumes=[{{name: tmp, emptyDir: {{}}, hostPath: {{path: /x}}}}]'", "KUBERNETES_POD", f"{P}.volumes.tmp", "2 sources", "one", f"'{P}.volumes=[{{name: tmp, hostPath: {{path: /x}}}}]'"),
    Mistake(f"'{P}.volumes=[{{name: My_Tmp, emptyDir: {{}}}}]'", "KUBERNETES_POD", f"{P}.volumes.My_Tmp.name", "no name", "small letters", ""),
    Mistake(f"'{P}.volumes=[{{name: t, hostPath: {{path: /a/../b}}}}]'", "KUBERNETES_POD", f"{P}.volumes.t.hostPath.path", "..", "without", f"'{P}.volumes=[{{name: t, hostPath: {{path: /b}}}}]'"),
    Mistake(f"'{P}.volumes=[{{name: t, emptyDir: {{sizeLimit: 32 GB}}}}]'", "KUBERNETES_POD", f"{P}.volumes.t.emptyDir.sizeLimit", "32 GB", "with a unit", f"'{P}.volumes=[{{name: t, emptyDir: {{sizeLimit: 32G}}}}]'"),
    Mistake(trainer("volumeMounts: [{name: dta, mountPath: /data}]"), "KUBERNETES_POD", f"{C}.volumeMounts.3.name", "no volume dta", "spec.volumes", ""),
    Mistake(trainer("volumeMounts: [{name: shm, mountPath: '/a:b'}]"), "KUBERNETES_POD", f"{C}.volumeMounts.3.mountPath", "/a:b", "without :", trainer("volumeMounts: [{name: shm, mountPath: /a}]")),
    Mistake(trainer("volumeMounts: [{name: shm, mountPath: /a, subPath: ../b}]"), "KUBERNETES_POD", f"{C}.volumeMounts.3.subPath", "leaves", "without ..", trainer("volumeMounts: [{name: shm, mountPath: /a, subPath: b}]")),
    Mistake(trainer("resources: {limits: {rdma/ib: 1}, requests: {rdma/ib: 2}}"), "KUBERNETES_POD", f"{C}.resources.requests.rdma/ib", "do not fit", "the same as", "fabric=coreweave_ib"),
    Mistake(trainer("resources: {requests: {rdma/ib: 1}}"), "KUBERNETES_POD", f"{C}.resources.limits", "without a limit", "rdma/ib", trainer("resources: {limits: {rdma/ib: 1}}")),
    Mistake(trainer("resources: {limits: {memroy: 5Gi}}"), "KUBERNETES_POD", f"{C}.resources.limits.memroy", "no resource memroy", "memory", trainer("resources: {limits: {memory: 900Gi}}")),
    Mistake(trainer("resources: {limits: {memory: 100Gi}}"), "KUBERNETES_POD", f"{C}.resources.requests.memory", "do not fit", "at most", trainer("resources: {limits: {memory: 900Gi}}")),
    Mistake(trainer("resources: {limits: {nvidia.com/gpu: 2}}"), "KUBERNETES_POD", f"{C}.resources.requests.nvidia.com/gpu", "do not fit", "the same", ""),
    Mistake(trainer("resources: {limits: {cpu: 12 cores}}"), "KUBERNETES_POD", f"{C}.resources.limits.cpu", "no quantity", "500m", trainer("resources: {limits: {cpu: 140}}")),
    Mistake(trainer("resources: {claims: [{name: rdma}]}"), "KUBERNETES_POD", f"{C}.resources.claims", "no resource claim rdma", "resourceClaims", "fabric=gke_dranet"),
    Mistake(f"'{P}.resourceClaims=[{{name: rdma}}]'", "KUBERNETES_POD", f"{P}.resourceClaims.rdma", "one of the two", "resourceClaimTemplateName", "fabric=gke_dranet"),
    Mistake(trainer("env: [{name: 1ST, value: x}]"), "KUBERNETES_POD", f"{C}.env.1ST.name", "no variable's name", "letters", trainer("env: [{name: FIRST, value: x}]")),
    Mistake(trainer("env: [{name: A, value: 16}]"), "KUBERNETES_POD", f"{C}.env.A.value", "wanted text", 'write "16"', trainer("env: [{name: A, value: \"16\"}]")),
    Mistake(trainer("env: [{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"), "KUBERNETES_POD", f"{C}.env.A", "valueFrom", "one of them", trainer("env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]")),
    Mistake(trainer("env: [{name: LAUNCHER_NODES, value: \"1\"}]"), "KUBERNETES_POD_OURS", f"{C}.env.LAUNCHER_NODES", "which pod", "leave", ""),
    Mistake(trainer("env: [{name: XLA_FLAGS, value: x}]"), "KUBERNETES_POD_OURS", f"{C}.env.XLA_FLAGS", "one by one", "leave", ""),
    Mistake(trainer("command: [bash]"), "KUBERNETES_POD_OURS", f"{C}.command", "set by the launcher", "leave", ""),
    Mistake(trainer("image: x"), "KUBERNETES_POD_OURS", f"{C}.image", "set by the launcher", "container.image=", "container.image=x"),
    Mistake(trainer("imagePullPolcy: Always"), "KUBERNETES_POD", f"{C}.imagePullPolcy", "no field", "imagePullPolicy", trainer("imagePullPolicy: Always")),
    Mistake(trainer("ports: [{containerPort: 70000}]"), "KUBERNETES_POD", f"{C}.ports.0.containerPort", "no port", "65535", trainer("ports: [{containerPort: 7000}]")),
    Mistake(trainer("securityContext: {privileged: true, allowPrivilegeEscalation: false}"), "KUBERNETES_POD", f"{C}.securityContext", "privileged", "leave", trainer("securityContext: {privileged: true}")),
    Mistake(f"'{P}.containers=[{{name: side, image: x}}]'", "KUBERNETES_SIDECAR", f"{P}.containers", "ends when both", "initContainers", f"'{P}.initContainers=[{{name: side, image: x, restartPolicy: Always}}]'", W),
    Mistake(f"'{P}.initContainers=[{{name: copy}}]'", "KUBERNETES_POD", f"{P}.initContainers.copy.image", "no image", "REGISTRY", f"'{P}.initContainers=[{{name: copy, image: x}}]'"),
    Mistake(f"'{P}.initContainers=[{{name: trainer, image: x}}]'", "KUBERNETES_POD", f"{P}.containers.trainer", "two containers", "own name", f"'{P}.initContainers=[{{name: copy, image: x}}]'"),
    Mistake("'fabric.pod.metadata.labels={team: a b}'", "KUBERNETES_POD", "fabric.pod.metadata.labels.team", "'a b'", "63 letters", "'fabric.pod.metadata.labels={team: a-b}'"),
    Mistake("'fabric.pod.metadata.annotations={team: 12}'", "KUBERNETES_POD", "fabric.pod.metadata.annotations.team", "wanted text", 'write "12"', "'fabric.pod.metadata.annotations={team: \"12\"}'"),
    Mistake("'fabric.pod.metadata.annotations={a b: x}'", "KUBERNETES_POD", "fabric.pod.metadata.annotations.a b", "cannot be a key", "PREFIX", "'fabric.pod.metadata.annotations={A.b/c: x}'"),
    Mistake("fabric.pod.metadata.name=x", "KUBERNETES_POD", "fabric.pod.metadata.name", "names its pods", "labels and annotations", ""),
    Mistake("fabric.pod.metadata.anotations=x", "KUBERNETES_POD", "fabric.pod.metadata.anotations", "no field", "did you mean annotations?", ""),
    Mistake("'fabric.pod.metadata.labels={jobset.sigs.k8s.io/jobset-name: x}'", "KUBERNETES_POD_OURS", "fabric.pod.metadata.labels.jobset.sigs.k8s.io/jobset-name", "controller", "leave", ""),
    Mistake("'fabric.pod.metadata.annotations={kueue.x-k8s.io/podset-required-topology: rack}'", "KUBERNETES_POD_OURS", "fabric.pod.metadata.annotations.kueue.x-k8s.io/podset-required-topology", "follows from the mesh", f"{K}.topology=LABEL", f"{K}.topology=rack"),
    Mistake("fabric.pod.spec=x", "KUBERNETES_POD", "fabric.pod.spec", "wanted a mapping", "below it", ""),
    Mistake(f"{P}.volumes=x", "KUBERNETES_POD", f"{P}.volumes", "wanted a list", "behind a -", ""),
]  # fmt: skip

RIGHT = [
    *(f"fabric={name}" for name in ("generic", "gb200_ib", "coreweave_ib", "gke_a4x", "gke_dranet", "oke", "eks_efa")),
    f"{K}.layout=job_per_domain {K}.queue=null fabric=gke_a4x",
    f"{K}.topology=cloud.google.com/gce-topology-subblock {K}.topology_block=cloud.google.com/gce-topology-block {K}.priority_class=high",
    f"{K}.namespace=moe {K}.service_account=launcher {K}.image_pull_secrets=[ghcr] {K}.cpu=140 {K}.memory_gib=850 {K}.shm_gib=64 {K}.ttl_seconds=604800 {K}.active_deadline_seconds=86400",
    f"{K}.compute_domain_nodes=32 monitor.max_preemptions=0 monitor.overflow=stop monitor.max_failures=0 trainer.stop_grace_seconds=0",
    "container.workdir=/opt/maxtext checkpoint.directory=/runs/shared +env.vars.QUOTES=\"'a \\\" $b: #c'\"",
    f"monitor.metrics_port=9400 monitor.webhook=CHAT env.secrets=[CHAT] +{K}.secrets.CHAT=chat/url",
    "container.image=registry.example:5000/team/jax@sha256:" + "0" * 64,
    f"'{P}.affinity={{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{matchExpressions: [{{key: a, operator: In, values: [b]}}]}}]}}}}}}'",
]  # fmt: skip
"""Words of which no error is said, and which the server takes."""
