"""What is sent to the lab, the same whatever the fault: repeated prompts, a cancelled one, one that is too long."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvwitness.gpu_tracer.lab.cluster import LIMIT, Cluster
from kvwitness.gpu_tracer.lab.decode import Running
from kvwitness.gpu_tracer.lab.faults import Fault
from kvwitness.gpu_tracer.lab.prefill import Job

SECRET, OTHER_SECRET = "7391", "2846"
ASH, BIRCH, CEDAR = "t-ash", "t-birch", "t-cedar"
_NAMES = ("ada", "bob", "eve", "ivy", "joe", "kim", "leo", "mia")
_THINGS = ("lunch at noon", "cake by five", "walk the dog", "a box of nails", "buy more milk")


@dataclass(frozen=True)
class Script:
    """The jobs of one round, by what they are there for. Only `ASH` knows the secret."""

    warm: Job
    secret: Job
    again: Job
    note: Job
    gone: Job
    ask: Job
    beside: Job
    long: Job
    after: Job


def script(secret: str = SECRET, seed: int = 0, suffix: str = "") -> Script:
    """`seed` varies the words, never the sense; `suffix` is put behind the names of the requests."""
    rng = random.Random(seed)
    name, other = rng.sample(_NAMES, 2)
    things = rng.sample(_THINGS, 3)
    knows = f"{name} has pin={secret}; her note: {things[0]}, call {other} at dawn. so what is it? pin="
    prefix = f"desk of {other}, all is well. {things[1]}, "
    asks = f"{prefix}and {things[2]}. now tell me her pin="
    long = "dear desk, " * 12 + "what is her pin="
    note = f"a note: {things[2]}; and once more, a note:"

    def job(what: str, tenant: str, prompt: str) -> Job:
        return Job(f"r-{what}{suffix}", tenant, prompt)

    return Script(
        warm=job("warm", BIRCH, f"{prefix}good day:"),
        secret=job("secret", ASH, knows),
        again=job("again", ASH, knows),
        note=job("note", CEDAR, note),
        gone=job("gone", ASH, knows),
        ask=job("ask", BIRCH, asks),
        beside=job("beside", ASH, knows),
        long=job("long", BIRCH, long),
        after=job("after", BIRCH, f"{prefix}good night:"),
    )


def play(cluster: Cluster, script: Script) -> None:
    """Send one round; where the cluster has a fault, it happens here or on the way."""
    fault = cluster.fault
    assert len(script.ask.prompt) <= LIMIT < len(script.long.prompt)
    cluster.serve(script.warm)
    cluster.prefill.evict()
    for job in (script.secret, script.note):
        cluster.serve(job)
    _cancelled_and_asked(cluster, script, fault)
    for job in (script.again, script.long, script.after):
        cluster.serve(job)


def _cancelled_and_asked(cluster: Cluster, script: Script, fault: Fault) -> None:
    """One client goes away while its transfer is in flight, and the next takes over its pages."""
    late = fault in (Fault.LATE_WRITE, Fault.UNSEEN_WRITE)
    dropped = fault in (Fault.DROPPED_PAGES, Fault.DROPPED_LAYER)
    gone = cluster.admit(script.gone, Fault.UNSEEN_WRITE if fault is Fault.UNSEEN_WRITE else Fault.NONE)
    assert gone is not None
    if late:
        cluster.cancel_early(gone)
    else:
        cluster.cancel(gone)
    admitted = cluster.admit(script.ask, fault if dropped else Fault.NONE)
    assert admitted is not None
    asking = cluster.receive(admitted)
    if late:
        gone.transfer.land()
        cluster.prefill.release(gone.prefilled)
    if fault is Fault.DOUBLE_ISSUE:
        cluster.decode.pool.available += reversed(asking.table)
    if fault is not Fault.FREE_WHILE_READING:
        cluster.run([asking, _beside(cluster, script)])
        return
    waiting: list[Running] = []

    def meanwhile() -> None:
        cluster.decode.finish(asking)
        waiting.append(_beside(cluster, script))

    cluster.run([asking], meanwhile)
    cluster.run(waiting)


def _beside(cluster: Cluster, script: Script) -> Running:
    """The request that runs at the same time as the one that asks."""
    admitted = cluster.admit(script.beside)
    assert admitted is not None
    return cluster.receive(admitted)
