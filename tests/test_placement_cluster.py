"""Liquid, Tereis and first fit: costs and queues by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from placement_cases import LinkNetwork, alone, cluster_of
from sim_cases import run

from netsched.fabrics import build as build_fabric
from netsched.model import Cluster, JobAlone, Spec, Transport
from netsched.placement import decide
from netsched.placement.alone import jobs_alone
from netsched.placement.apply import placed
from netsched.placement.costs import Layout, tasks_of
from netsched.placement.first_fit import FirstFit
from netsched.placement.genetic import Genetic, evolve
from netsched.placement.liquid import Liquid
from netsched.placement.tereis import Tereis
from netsched.policies.fair import Fair
from netsched.workloads import build as unroll

RNG = np.random.default_rng(0)
FABRIC = build_fabric(
    Spec("leaf_spine", {"leaves": 2, "spines": 1, "hosts_per_leaf": 3, "host_rate": "10Gbit/s"})
)[1]
"""Hosts 0 to 2 are on one leaf (2 links apart), 3 to 5 on the other (4 links)."""


def star_job(name: str, hosts: tuple[int, ...], **more) -> JobAlone:
    """A server (the first place) that exchanges 1 B with each worker."""
    job = alone(name, hosts, 1.0, (0.0, 1.0), computes=(False, *[True] * (len(hosts) - 1)), **more)
    job.traffic[:] = 0.0
    job.traffic[0, 1:] = job.traffic[1:, 0] = 1.0
    return job


# ------------------------------------------------------------------ first fit


def test_first_fit_waits_for_the_first_hosts():
    network = LinkNetwork(3, {(0, 1): [0]})
    jobs = [
        alone("a", (0, 1), 1.0, (0.0, 0.5), duration=10.0),
        alone("b", (1, 2), 1.0, (0.0, 0.5), arrival=1.0, duration=5.0),
        alone("c", (0,), 1.0, (0.0, 0.5), arrival=2.0, duration=5.0),
    ]
    placing = decide(FirstFit(), cluster_of(network, *jobs), RNG)
    # b needs two of three hosts and waits for a; c, behind b in the queue, takes the one that is left.
    assert [hosts.tolist() for hosts in placing.hosts] == [[0, 1], [0, 1], [2]]
    assert placing.after == ((), (0,), ())
    both = decide(FirstFit(room=2), cluster_of(network, *jobs), RNG)
    assert [hosts.tolist() for hosts in both.hosts] == [[0, 1], [0, 1], [2]]
    assert both.after == ((), (), ())


def test_first_fit_moves_servers_to_where_few_compute():
    network, here = LinkNetwork(5, {(0, 1): [0]}), (True, True, False, False)
    jobs = [
        alone("a", (3, 2, 4, 4), 1.0, (0.0, 0.5), duration=10.0, computes=here),
        alone("b", (0, 1, 4, 4), 1.0, (0.0, 0.5), arrival=1.0, duration=5.0, computes=here),
        alone("c", (0, 1, 2, 4, 4, 4), 1.0, (0.0, 0.5), arrival=20.0, computes=(True,) * 3 + (False,) * 3),
    ]
    placing = decide(FirstFit(servers="move"), cluster_of(network, *jobs), RNG)
    # Host 4 computes for nobody, so it is none of theirs. a has 0 and 1, and 2 and 3 are free. b has these,
    # so its servers join a's workers. c's workers leave one host: its other two servers go beside them.
    assert [hosts.tolist() for hosts in placing.hosts] == [[0, 1, 2, 3], [2, 3, 0, 1], [0, 1, 2, 3, 0, 1]]
    stayed = decide(FirstFit(), cluster_of(network, *jobs), RNG)
    assert [hosts.tolist() for hosts in stayed.hosts] == [[0, 1, 4, 4], [2, 3, 4, 4], [0, 1, 2, 4, 4, 4]]


# ------------------------------------------------------------------ Liquid


def test_liquid_keeps_a_job_in_one_rack():
    # Three hosts to compute on, 1, 3 and 4, so the server is best on 3 or 4: 0 + 1 + 4 and not 0 + 4 + 4.
    cluster = Cluster((star_job("a", (0, 3, 4, 1)),), FABRIC)
    placing = decide(Liquid(mode="batch"), cluster, np.random.default_rng(0))
    assert sorted(placing.hosts[0][1:].tolist()) == [1, 3, 4] and placing.hosts[0][0] in (3, 4)
    assert placing.shift.tolist() == [0.0]
    # Task by task, a worker goes to the first host, the server beside it, and the others where there is room.
    assert decide(Liquid(), cluster, RNG).hosts[0].tolist() == [1, 1, 3, 4]


def layout(cluster: Cluster, room: int = 1) -> Layout:
    params = Liquid()
    return Layout(
        cluster,
        tuple(range(len(cluster.jobs))),
        params._pair_cost(cluster),
        np.zeros(6, np.int64),
        np.ones(6, bool),
        room,
    )


def test_what_a_layout_costs():
    cluster = Cluster((star_job("a", (0, 1, 2)),), FABRIC)
    tasks = tasks_of(cluster, 0)
    # Two workers and a server: one worker, the server, the other worker.
    assert [task.place for task in tasks] == [1, 0, 2]
    made = layout(cluster)
    # Server on host 0, workers there and across: 0 + 4. Load: 1 + 1 for the server, beside one that computes,
    # and -(0 + 1 + 1) for each worker; a job on two hosts.
    cost = made.total(tasks, np.array([0, 0, 3]))
    assert cost == pytest.approx(4.0 + (2 - 2 - 2 + 2) / 3)
    # All in one rack, on three hosts: 1 + 1, and 1 - 2 - 2 + 3 hosts.
    assert made.total(tasks, np.array([1, 0, 2])) == pytest.approx(2.0 + (1 - 2 - 2 + 3) / 3)


def all_layouts(made: Layout, tasks: list) -> float:
    costs = []
    for hosts in itertools.product(range(6), repeat=len(tasks)):
        workers = [h for t, h in zip(tasks, hosts, strict=True) if t.computes]
        if len(set(workers)) == len(workers):
            costs.append(made.total(tasks, np.array(hosts)))
    return min(costs)


def test_the_genetic_search_finds_the_cheapest_of_all():
    cluster = Cluster((star_job("a", (0, 3, 1)), star_job("b", (1, 4, 2))), FABRIC)
    tasks = tasks_of(cluster, 0) + tasks_of(cluster, 1)
    made = layout(cluster)
    found = evolve(made, tasks, Genetic.of(len(tasks)), np.random.default_rng(3))
    hosts = np.array([found[task.job][task.place] for task in tasks])
    assert made.total(tasks, hosts) == pytest.approx(all_layouts(made, tasks))
    # Best fit, task by task, cannot do better.
    fitted = made.fill(tasks, np.full(len(tasks), -1), None)
    assert made.total(tasks, fitted) >= made.total(tasks, hosts) - 1e-9


def test_a_batch_is_placed_at_the_intervals_end():
    jobs = (star_job("a", (0, 1, 2), duration=9.0), star_job("b", (3, 4, 5), arrival=1.0, duration=9.0))
    placing = decide(Liquid(mode="batch", interval=4.0), Cluster(jobs, FABRIC), RNG)
    assert placing.shift.tolist() == [0.0, 3.0] and placing.after == ((), ())
    # No room for both: hosts 1 and 2 are all there are.
    jobs = (star_job("a", (0, 1, 2), duration=9.0), star_job("b", (3, 1, 2), duration=9.0))
    placing = decide(Liquid(mode="batch", interval=4.0), Cluster(jobs, FABRIC), RNG)
    assert sorted(placing.after) == [(), (0,)] or sorted(placing.after) == [(), (1,)]


# ------------------------------------------------------------------ Tereis


def loading_cluster(short: float) -> Cluster:
    """b loads for 10 s and computes for 5 s; two others, of `short` and 20 s, without data; two hosts."""
    network = LinkNetwork(2, {(0, 1): [0]})
    return cluster_of(
        network,
        alone("b", (0, 1), 1.0, (0.0, 0.5), loading=10.0, duration=15.0),
        alone("short", (0,), 1.0, (0.0, 0.5), arrival=1.0, duration=short),
        alone("long", (1,), 1.0, (0.0, 0.5), arrival=1.0, duration=20.0),
    )


def test_a_short_job_computes_while_another_loads():
    # 9 s of loading are left at 1 s, less a margin of a tenth: 8.1 s.
    placing = decide(Tereis(), loading_cluster(8.0), RNG)
    # The long one goes to a host of b's, after b.
    assert placing.after == ((), (), (0, 1))
    assert placing.hosts[1].tolist() == [0]
    assert placing.notes == ("short: computes while b loads its data",)
    # A little longer, and it waits for b like the other one.
    waits = decide(Tereis(), loading_cluster(8.2), RNG)
    assert waits.after == ((), (0,), (0,)) and not waits.notes


def test_of_several_guests_the_longest_that_fits_and_one_only():
    network = LinkNetwork(1, {(0, 0): [0]})
    jobs = [alone("b", (0,), 1.0, (0.0, 0.5), loading=10.0, duration=15.0)]
    jobs += [alone(f"a{n}", (0,), 1.0, (0.0, 0.5), duration=float(n)) for n in (2, 8, 5, 30)]
    placing = decide(Tereis(), cluster_of(network, *jobs), RNG)
    assert placing.notes == ("a8: computes while b loads its data",)


def test_levels_and_age():
    params = Tereis(levels=3, first=10.0, growth=10.0, age=60.0)
    job = {seconds: alone("a", (0,), 1.0, (0.0, 0.5), duration=seconds) for seconds in (10.0, 11.0, 1e4)}
    assert [params.level(each, 0.0) for each in job.values()] == [0, 1, 2]
    assert [params.level(job[1e4], at) for at in (59.0, 60.0, 120.0, 600.0)] == [2, 1, 0, 0]


def test_packaged_jobs_compute_one_after_the_other():
    # Real workloads: b loads 10 Gbit of data at 10 Gbit/s, 1 s; a has nothing to load.
    device = {"flops": "10TFLOP/s", "efficiency": 0.5}
    common = {"model": "alexnet", "batch": 8, "device": device, "servers": ["h3"]}
    fabric = build_fabric(Spec("single_switch", {"hosts": 3, "rate": "10Gbit/s"}))[1]
    specs = (
        Spec(
            "training",
            {**common, "name": "b", "workers": ["h1"], "iterations": 2}
            | {"data": "1.25GB", "storage": ["h2"]},
        ),
        Spec("training", {**common, "name": "a", "workers": ["h1"], "iterations": 2}),
    )
    workload = unroll(specs, fabric, 0)
    cluster = Cluster(jobs_alone(workload, fabric, Transport()), fabric)
    assert cluster.jobs[0].loading == pytest.approx(1.0)
    assert cluster.jobs[1].loading == 0.0
    ends = {}
    for placement in (FirstFit(), Tereis()):
        made = placed(workload, cluster, decide(placement, cluster, RNG))
        outcome = run(made, fabric, Fair())
        on_h1 = np.flatnonzero((made.tasks.host == 0) & (made.tasks.seconds > 0))
        begin, end = outcome.task_start[on_h1], outcome.task_finish[on_h1]
        order = np.argsort(begin)
        assert (begin[order][1:] >= end[order][:-1] - 1e-9).all()
        ends[placement.name] = float(outcome.task_finish.max())
    # What a computes and pushes is hidden in b's loading; what it pulls, twice all parameters of 4 B, comes
    # through the same port as b's data.
    pulls = 2 * 4 * 61_100_840 / 1.25e9
    assert ends["first-fit"] - ends["tereis"] == pytest.approx(cluster.jobs[1].duration - pulls, rel=1e-3)
