"""A run of one flow in a fresh process: its time is that of importing and of loading compiled kernels."""

from netsched import fabrics
from netsched.model import Connections, Control, Spec, Transport
from netsched.policies.fair import Fair
from netsched.simulate import simulate
from netsched.workloads.builder import WorkloadBuilder

_, fabric = fabrics.build(Spec("single_switch", {"hosts": 2, "rate": "1Gbit/s"}))
builder = WorkloadBuilder(2)
job = builder.add_job("job")
builder.add_flow(builder.add_coflow(job, builder.add_stage(job, "only"), "coflow"), 0, 1, 125e6)
outcome = simulate(
    builder.build(), fabric, Fair(), queues=None, transport=Transport(Connections.PER_FLOW), control=Control()
)
assert outcome.flow_finish[0] == 1.0
