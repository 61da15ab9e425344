"""The command line: one subcommand a verb, each importing its package only when it is called."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay import commands as replay_commands
from replay import fine_tune_command
from schemas.errors import HeadraceError
from streams import model_commands

if TYPE_CHECKING:
    from schemas.records import NodeSpec, Reward
    from streams.config import Settings

EXIT_UNFINISHED = 1
EXIT_DIFFERENT = 1
EXIT_REFUSED = 2

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Event-driven, learned scheduling of workflow DAGs on Kafka.\n\n"
    "Settings come from a YAML file (--config, HEADRACE_CONFIG) and from HEADRACE_* variables.",
    epilog="Start with: headrace demo",
)
topics_app = typer.Typer(no_args_is_help=True, help="The topics on the broker.")
app.add_typer(topics_app, name="topics")
train_app = typer.Typer(invoke_without_command=True)
app.add_typer(train_app, name="train")
replay_commands.add_to(app)
fine_tune_command.add_to(app)
model_commands.add_to(app)

Files = Annotated[list[Path], typer.Argument(help="Workflow files: headrace's YAML or JSON, or WfFormat 1.2 to 1.5.")]
Config = Annotated[Path | None, typer.Option("--config", help="A YAML file of settings.")]
Nodes = Annotated[Path | None, typer.Option(help="Nodes of the simulated cluster: YAML, JSON, or a trace's CSV.")]
TimeScale = Annotated[float | None, typer.Option(help="How much faster than real time the cluster runs.")]
PolicyName = Annotated[str | None, typer.Option("--policy", help="`actor`, or a heuristic such as heft or srcp.")]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray", help="Play on a Ray cluster: HOST:PORT of its head, or `local` (needs headrace[ray])."),
]
Parent = Annotated[int | None, typer.Option(hidden=True)]


def _settings(config: Path | None, **changes: Any) -> Settings:
    """The settings, with what the command line changes: `policy__name=…`."""
    from dataclasses import replace

    from streams.config import load

    settings = load(config)
    for name, value in changes.items():
        if value is not None:
            part, field = name.split("__")
            settings = settings.model_copy(update={part: replace(getattr(settings, part), **{field: value})})
    return settings


def _specs(settings: Settings) -> tuple[NodeSpec, ...]:
    """The nodes of the simulated cluster."""
    from schemas.node_file import read_nodes

    return read_nodes(settings.cluster.nodes or Path(str(files("headrace_examples").joinpath("nodes.yaml"))))


def _follow_parent(parent: int | None) -> None:
    if parent is not None:
        from streams.supervisor import end_with_parent

        end_with_parent(parent)


def _wait_for_signal() -> None:
    """Until Ctrl-C or SIGTERM."""
    stop = signal.sigwait({signal.SIGINT, signal.SIGTERM})
    print(f"\n{signal.Signals(stop).name}: stopping", file=sys.stderr)


def _hold_signals() -> None:
    """Have SIGINT and SIGTERM wait for `_wait_for_signal`, in this thread and in those it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


@app.command(epilog="Example: headrace demo --out results examples/etl_pipeline.yaml")
def demo(
    workflows: Annotated[list[Path] | None, typer.Argument(help="Workflow files; none: the five examples.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the trace, the figures and a picture.")] = None,
    nodes: Nodes = None,
    time_scale: TimeScale = None,
    policy: PolicyName = None,
    config: Config = None,
) -> None:
    """Run everything on this machine: broker, worker, simulated cluster; place workflows and show the figures."""
    from rich.console import Console

    from schemas.logs import set_up
    from streams import demo as main_job
    from streams.client import read_files

    set_up("ERROR")
    settings = _settings(config, cluster__nodes=nodes, policy__name=policy, worker__port=0)
    specs = _specs(settings)
    examples = Path(str(files("headrace_examples")))
    paths = workflows or sorted(p for p in examples.glob("*.yaml") if p.name != "nodes.yaml")
    submitted = read_files(paths, settings.pool, f"-{int(time.time())}")
    scale = time_scale or main_job.time_scale_for(submitted, specs)
    settings = _with_environment(settings, nodes, scale, policy, config)
    if not main_job.run(settings, submitted, specs, out, Console(width=None if sys.stdout.isatty() else 120)):
        raise typer.Exit(EXIT_UNFINISHED)


def _with_environment(
    settings: Settings, nodes: Path | None, scale: float, policy: str | None, config: Path | None
) -> Settings:
    """The settings with this time scale; what differs from the file is set for the child processes too."""
    import os
    from dataclasses import replace

    os.environ["HEADRACE_CLUSTER__TIME_SCALE"] = str(scale)
    if nodes is not None:
        os.environ["HEADRACE_CLUSTER__NODES"] = str(nodes)
    if policy is not None:
        os.environ["HEADRACE_POLICY__NAME"] = policy
    if config is not None:
        os.environ["HEADRACE_CONFIG"] = str(config)
    return settings.model_copy(update={"cluster": replace(settings.cluster, time_scale=scale)})


@app.command(epilog="Example: headrace up --time-scale 10, then in another terminal: headrace submit FILE")
def up(nodes: Nodes = None, time_scale: TimeScale = None, policy: PolicyName = None, config: Config = None) -> None:
    """Start broker, topics, worker and simulated cluster on this machine, and keep them up until Ctrl-C."""
    from schemas.logs import set_up
    from streams.installation import Installation

    set_up("ERROR")
    settings = _settings(config, cluster__nodes=nodes, policy__name=policy)
    settings = _with_environment(settings, nodes, time_scale or settings.cluster.time_scale, policy, config)
    _specs(settings)
    progress = partial(print, "…", file=sys.stderr)
    with Installation(settings, None, progress, records_rewards=True, watches_canaries=True) as installation:
        _hold_signals()
        print(f"export HEADRACE_KAFKA__BOOTSTRAP_SERVERS={installation.kafka.bootstrap_servers}", flush=True)
        print(f"metrics, health: http://127.0.0.1:{installation.port}/metrics", file=sys.stderr)
        _wait_for_signal()


@app.command()
def broker(
    port: Annotated[int | None, typer.Option(help="Client port; 0 takes a free one.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Keep the data here; else it is temporary.")] = None,
    config: Config = None,
) -> None:
    """Start an Apache Kafka on this machine, print its address, and keep it up until Ctrl-C."""
    from streams.broker import EmbeddedBroker

    settings = _settings(config, broker__port=port, broker__data_dir=data_dir)
    with EmbeddedBroker(settings.broker) as embedded:
        _hold_signals()
        print(embedded.bootstrap_servers, flush=True)
        _wait_for_signal()


@app.command()
def worker(policy: PolicyName = None, parent: Parent = None, config: Config = None) -> None:
    """Decide: read metrics, workflows and events, publish placements. SIGTERM stops it in order."""
    from schemas.logs import set_up
    from streams.app import run_worker
    from streams.installation import require_broker

    settings = _settings(config, policy__name=policy)
    set_up(settings.log_level)
    require_broker(settings)
    _follow_parent(parent)
    raise typer.Exit(run_worker(settings))


@app.command()
def cluster(nodes: Nodes = None, time_scale: TimeScale = None, parent: Parent = None, config: Config = None) -> None:
    """Simulate the nodes of a pool: obey placements, publish metrics and task events."""
    from schemas.logs import set_up
    from streams.cluster import Cluster
    from streams.installation import require_broker
    from streams.registry import codec_for
    from streams.topic_admin import check_topics

    settings = _settings(config, cluster__nodes=nodes, cluster__time_scale=time_scale)
    set_up(settings.log_level)
    require_broker(settings)
    check_topics(settings.kafka, settings.topics)
    _follow_parent(parent)
    simulated = Cluster(
        settings.pool, _specs(settings), settings.cluster, settings.kafka, settings.topics, codec_for(settings.kafka)
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: simulated.stop())
    simulated.run()


@app.command(epilog="Example: headrace submit --wait examples/etl_pipeline.yaml")
def submit(
    workflows: Files,
    suffix: Annotated[str | None, typer.Option(help="Behind every id; default: the time. An id is run once.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Print what becomes of them until all are over.")] = False,
    within: Annotated[float, typer.Option(min=0, help="With --wait: give up after so many seconds.")] = math.inf,
    config: Config = None,
) -> None:
    """Submit workflows: all of the files, or, where one cannot be run, none.

    With --wait the exit code is 0 where every task finished, else 1.
    """
    from streams.client import Client
    from streams.installation import require_broker
    from streams.outcome import follow

    settings = _settings(config)
    require_broker(settings)
    suffix = f"-{int(time.time())}" if suffix is None else suffix
    with Client(settings.kafka, settings.pool, settings.topics) as client, closing(client.watch()) as watch:
        submitted = client.submit_files(workflows, suffix)
        for workflow in submitted:
            print(f"{workflow.workflow_id}: {len(workflow.tasks)} tasks submitted", flush=True)
        if wait:
            tally = follow(watch, submitted, partial(print, flush=True), within)
            print(tally)
            if not tally.is_complete:
                raise typer.Exit(EXIT_UNFINISHED)


@app.command()
def placements(
    follow: Annotated[bool, typer.Option(help="Go on with those to come; else end after the newest.")] = False,
    from_start: Annotated[bool, typer.Option(help="Begin with the oldest that Kafka has.")] = True,
    every_outcome: Annotated[bool, typer.Option(help="Also why attempts wait, or are refused.")] = False,
    config: Config = None,
) -> None:
    """Print placements as JSON lines."""
    import json

    from schemas.conversion import to_plain
    from streams.client import Client
    from streams.installation import require_broker

    settings = _settings(config)
    require_broker(settings)
    with Client(settings.kafka, settings.pool, settings.topics) as client:
        timeout_s = None if follow else 2.0
        for placement in client.placements(from_start=from_start, timeout_s=timeout_s, every_outcome=every_outcome):
            print(json.dumps(to_plain(placement)), flush=True)


@app.command(epilog="Example: headrace reward --out results; headrace reward etl_pipeline-1/cleaning")
def reward(
    decision: Annotated[str | None, typer.Argument(help="WORKFLOW or WORKFLOW/TASK: its decisions in full.")] = None,
    hours: Annotated[float, typer.Option(min=0, help="How far to look back.")] = 24.0,
    from_start: Annotated[bool, typer.Option("--from-start", help="Look at all that Kafka has.")] = False,
    last: Annotated[int, typer.Option(min=1, help="Decisions of the table, the newest.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Folder for rewards.jsonl and reward.svg.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Show what lies in this folder instead; asks no broker.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Record rewards in their topic until Ctrl-C.")] = False,
    metrics_port: Annotated[int | None, typer.Option(help="With --record: serve /metrics here.")] = None,
    weight: Annotated[list[str] | None, typer.Option(help="NAME=NUMBER: weigh decisions so from now on.")] = None,
    parent: Parent = None,
    config: Config = None,
) -> None:
    """Show what decisions were worth, term by term; record it; change the weights while everything runs."""
    from rich.console import Console

    from streams import reward_report

    settings = _settings(config)
    if record:
        _record_rewards(settings, None if from_start else hours, metrics_port, parent)
        return
    if weight:
        _weigh(settings, weight)
        return
    found = reward_report.read(folder) if folder else _rewards(settings, None if from_start else hours)
    shown = reward_report.chosen(found, decision) if decision else found[-last:]
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(reward_report.table(shown))
    for one in shown if decision else ():
        console.print(reward_report.details(one))
    if out is not None:
        reward_report.write(found, out, f"headrace: rewards of pool {settings.pool}")


def _rewards(settings: Settings, hours: float | None) -> list[Reward]:
    """The recorded rewards, and what follows from the topics beyond them."""
    from streams.installation import require_broker
    from streams.rewards import latest, rewards_of
    from streams.topic_admin import check_topics

    require_broker(settings)
    check_topics(settings.kafka, settings.topics)
    rewards = rewards_of(settings, settings.kafka, hours)
    return latest([*rewards.recorded(), *rewards.news()])


def _record_rewards(settings: Settings, hours: float | None, port: int | None, parent: int | None) -> None:
    from schemas.logs import set_up
    from streams import metrics
    from streams.installation import require_broker
    from streams.kafka import Publisher
    from streams.registry import codec_for
    from streams.rewards import Recorder, rewards_of
    from streams.topic_admin import check_topics

    set_up(settings.log_level)
    require_broker(settings)
    check_topics(settings.kafka, settings.topics)
    _follow_parent(parent)
    if port is not None:
        metrics.serve(port, settings.worker.host)
    with closing(Publisher(settings.kafka, settings.topics, codec_for(settings.kafka))) as publisher:
        recorder = Recorder(rewards_of(settings, settings.kafka, hours), publisher)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: recorder.stop())
        recorder.run()


def _weigh(settings: Settings, given: list[str]) -> None:
    """Tell every recorder of the pool, those to come too, of new weights."""
    from policy.credit import NEW_WEIGHTS
    from policy.reward import changed
    from schemas.errors import InvalidConfiguration
    from schemas.records import Control
    from schemas.topics import CONTROL
    from streams.installation import require_broker
    from streams.kafka import Publisher
    from streams.registry import codec_for

    pairs = [text.partition("=") for text in given]
    if wrong := next((text for text, (_, equals, _) in zip(given, pairs, strict=True) if not equals), None):
        raise InvalidConfiguration("--weight", f"'{wrong}' is not NAME=NUMBER", "write for instance sla=0.3")
    arguments = {name: number for name, _, number in pairs}
    weights = changed(settings.reward, arguments)
    require_broker(settings)
    with closing(Publisher(settings.kafka, settings.topics, codec_for(settings.kafka))) as publisher:
        control = Control(settings.pool, int(time.time() * 1000), NEW_WEIGHTS, arguments)
        publisher.send(CONTROL, f"{settings.pool} {NEW_WEIGHTS}", control)
    print(" ".join(f"{name}={value:g}" for name, value in vars(weights).items()))


@app.command()
def dead_letters(config: Config = None) -> None:
    """Print what workers could not use as JSON lines: which record, why, and its bytes in base64."""
    import base64
    import json

    from schemas.conversion import to_plain
    from streams import client
    from streams.installation import require_broker

    settings = _settings(config)
    require_broker(settings)
    for letter in client.dead_letters(settings.kafka, settings.topics):
        plain = to_plain(letter) | {"payload": base64.b64encode(letter.payload).decode()}
        print(json.dumps(plain), flush=True)


@app.command()
def validate(workflows: Files, nodes: Nodes = None, config: Config = None) -> None:
    """Say whether workflow files could be submitted, without submitting them."""
    from schemas.dag import check_fits
    from schemas.errors import InvalidInput
    from schemas.node_file import read_nodes
    from streams.client import read_files

    specs = read_nodes(nodes) if nodes else None
    problems = 0
    for path in workflows:
        try:
            for workflow in read_files([path], "validation"):
                if specs:
                    check_fits(workflow, specs, str(path))
                print(f"{path}: {workflow.workflow_id}: {len(workflow.tasks)} tasks, valid")
        except InvalidInput as error:
            problems += 1
            print(f"error: {error}", file=sys.stderr)
    if problems:
        raise typer.Exit(EXIT_REFUSED)


@topics_app.command("create")
def topics_create(config: Config = None) -> None:
    """Create the topics that are missing."""
    from streams.installation import require_broker
    from streams.topic_admin import check_topics, create_topics

    settings = _settings(config)
    require_broker(settings)
    created = create_topics(settings.kafka, settings.topics)
    check_topics(settings.kafka, settings.topics)
    print("\n".join(f"created {name}" for name in created) or "all topics are there")


@topics_app.command("list")
def topics_list(config: Config = None) -> None:
    """Print the catalogue: name, record, partitions, clean-up."""
    from schemas.topics import CATALOGUE

    settings = _settings(config)
    for topic in CATALOGUE:
        details = " ".join(f"{key}={value}" for key, value in topic.settings().items())
        count = settings.topics.partition_count(topic)
        print(f"{settings.topics.full_name(topic):32} {topic.record.__name__:18} {count:3} partitions  {details}")


@topics_app.command("check")
def topics_check(config: Config = None) -> None:
    """Say whether the topics are as configured."""
    from streams.installation import require_broker
    from streams.topic_admin import check_topics

    settings = _settings(config)
    require_broker(settings)
    check_topics(settings.kafka, settings.topics)
    print("all topics are as configured")


@train_app.callback(epilog="Example: headrace train --preset quick --out weights")
def train(
    context: typer.Context,
    preset: Annotated[str | None, typer.Option(help="All stages, one after the other: quick or full.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the weights.")] = Path("weights"),
    seed: Annotated[int, typer.Option(help="One seed makes one set of weights.")] = 0,
) -> None:
    """Learning (needs headrace[train]): all stages of a preset, or one of them by itself."""
    if context.invoked_subcommand is not None:
        return
    if preset is None:
        print(context.get_help())
        raise typer.Exit(EXIT_REFUSED)
    with _training_packages():
        from trainer import presets
    presets.train(preset, out, seed)


@train_app.command("clone")
def train_clone(
    out: Annotated[Path, typer.Option(help="Folder for the weights.")] = Path("weights"),
    teacher: Annotated[str, typer.Option(help="The heuristic to imitate.")] = "heft",
    episodes: Annotated[int, typer.Option(help="Simulated episodes to learn from.")] = 12,
    seed: Annotated[int, typer.Option(help="One seed makes one set of weights.")] = 0,
) -> None:
    """Train the actor to decide as a heuristic does, and write its weights (for policy.weights)."""
    with _training_packages():
        from trainer.clone import CloneSettings, clone
    clone(CloneSettings(out=out, teacher=teacher, episodes=episodes, seed=seed))


@train_app.command("search")
def train_search(
    out: Annotated[Path, typer.Option(help="Folder for the weights.")] = Path("weights"),
    hidden: Annotated[int, typer.Option(help="Hidden units that weigh the features by task; none: linear.")] = 0,
    start: Annotated[Path | None, typer.Option(help="Linear weights to begin with; none: by hand.")] = None,
    generations: Annotated[int, typer.Option(help="Of the evolution strategy.")] = 120,
    candidates: Annotated[int, typer.Option(help="Of a generation.")] = 16,
    episodes: Annotated[int, typer.Option(help="That each candidate plays.")] = 8,
    pool: Annotated[int, typer.Option(help="Scenarios of which they are drawn.")] = 96,
    step: Annotated[float, typer.Option(help="First standard deviation of the weights.")] = 2.0,
    seed: Annotated[int, typer.Option(help="One seed makes one set of weights.")] = 0,
    ray: RayAddress = None,
) -> None:
    """Search the weights of a policy on whole episodes, and write them (for policy.weights)."""
    with _training_packages():
        from trainer.search import SearchSettings, search
    search(
        SearchSettings(
            out=out,
            hidden=hidden,
            start=start,
            generations=generations,
            candidates=candidates,
            episodes=episodes,
            pool=pool,
            step=step,
            seed=seed,
            ray=ray,
        )
    )


@train_app.command("learn", epilog="Example: headrace train learn --start weights --out learnt --log runs")
def train_learn(
    out: Annotated[Path, typer.Option(help="Folder for the weights.")] = Path("weights"),
    start: Annotated[Path | None, typer.Option(help="Weights to begin with; none: linear ones by hand.")] = None,
    decisions: Annotated[int, typer.Option(help="To learn from.")] = 300_000,
    clip: Annotated[float, typer.Option(help="PPO: how far a probability may move; 0: plain A2C.")] = 0.0,
    epochs: Annotated[int, typer.Option(help="Times that a batch is learnt from, with --clip.")] = 1,
    traces: Annotated[Path | None, typer.Option(help="Recorded node metrics: a tenth has their anomalies.")] = None,
    log: Annotated[Path | None, typer.Option(help="Folder for TensorBoard.")] = None,
    keep_anyway: Annotated[bool, typer.Option(help="Write them even where they do not beat the start.")] = False,
    seed: Annotated[int, typer.Option(help="One seed makes one set of weights.")] = 0,
) -> None:
    """Train the network by its own choices (A2C or PPO), and write what is better: it or its start."""
    with _training_packages():
        from trainer.learn import LearnSettings, learn
        from trainer.rollouts import RolloutSettings
    learn(
        LearnSettings(
            out=out,
            start=start,
            rollouts=RolloutSettings(traces=traces),
            decisions=decisions,
            clip=clip,
            epochs=epochs,
            log=log,
            keep_anyway=keep_anyway,
            seed=seed,
        )
    )


@train_app.command("ablation", epilog="Example: headrace train ablation --start weights --out ablation.json")
def train_ablation(
    start: Annotated[Path | None, typer.Option(help="Weights to begin with; none: linear ones by hand.")] = None,
    decisions: Annotated[int, typer.Option(help="Of each training.")] = 80_000,
    trainings: Annotated[int, typer.Option(help="Seeds, of each variant.")] = 3,
    checked: Annotated[int, typer.Option(help="Fresh scenarios of each load.")] = 16,
    out: Annotated[Path | None, typer.Option(help="File for the table as JSON.")] = None,
    seed: Annotated[int, typer.Option(help="One seed makes one table.")] = 0,
) -> None:
    """What the DAG encoder, the curriculum, the adversary and importance sampling each bring."""
    with _training_packages():
        from trainer.ablation import AblationSettings, ablation, as_json, table
    settings = AblationSettings(start=start, decisions=decisions, trainings=trainings, checked=checked, seed=seed)
    rows = ablation(settings, partial(print, file=sys.stderr, flush=True))
    print(table(rows))
    if out is not None:
        out.write_text(as_json(rows, settings))


@app.command(epilog="Example: headrace evaluate --suite quick --seeds 8")
def evaluate(
    suite: Annotated[
        str, typer.Option(help="`standard`, `quick`, `large` (to 5,000 nodes), `headline` or `traces`.")
    ] = "standard",
    seeds: Annotated[int, typer.Option(help="Scenarios of each row, the same for every policy.")] = 24,
    weights: Annotated[Path | None, typer.Option(help="Weights to compare; none: those that come along.")] = None,
    traces: Annotated[Path | None, typer.Option(help="A folder of real traces, for the rows made from them.")] = None,
    heuristics: Annotated[
        str | None, typer.Option(help="Only these, divided by commas; kube_default is always there.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A file for all figures, as JSON.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="A file for the differences with their intervals, as SVG.")
    ] = None,
    ray: RayAddress = None,
    config: Config = None,
) -> None:
    """Play the actor and every heuristic on the same simulated scenarios; show who is better, and how surely."""
    from rich.console import Console

    from policy.weight_set import read_weights, shipped_weights
    from schemas.errors import InvalidConfiguration

    with _training_packages():
        from trainer.evaluate import EvaluationSettings, as_json, show
        from trainer.evaluate import evaluate as compare
        from trainer.headline import show_beside
        from trainer.intervals_picture import draw
        from trainer.rules import HEURISTIC_RULES, rule_of
    settings = _settings(config)
    names = tuple(heuristics.split(",")) if heuristics is not None else tuple(HEURISTIC_RULES)
    chosen = read_weights(weights) if weights else shipped_weights()
    actor = {"actor": rule_of(chosen, settings.policy.temperature)}
    progress = partial(print, file=sys.stderr, flush=True)
    for path in (out, picture):
        if path is not None and not path.absolute().parent.is_dir():
            raise InvalidConfiguration(str(path), "its folder does not exist", "make the folder, or name another")
    asked = EvaluationSettings(suite=suite, seeds=seeds, traces=traces, heuristics=names, ray=ray)
    report = compare(asked, actor, progress)
    console = Console(width=None if sys.stdout.isatty() else 180)
    show(report, console, "actor")
    if suite == "headline":
        show_beside(report, console, "actor")
    if out is not None:
        out.write_text(as_json(report))
    if picture is not None:
        picture.write_text(draw(report, "actor"), encoding="utf-8")


@app.command(epilog="Example: headrace second-opinion --seed 7")
def second_opinion(
    seed: Annotated[int, typer.Option(help="One seed makes one set of workloads.")] = 0,
) -> None:
    """Run the simulator's placements in CloudSim Plus too, and compare the makespans.

    The exit code is 0 where they agree, else 1. The first run on a machine fetches 5 MB.
    """
    with _training_packages("cloudsim"):
        from trainer.cloudsim import start_java
        from trainer.second_opinion import HEADER, compare, workloads
    start_java(cloudsim_jars())
    print(HEADER, flush=True)
    comparisons = []
    for workload in workloads(seed):
        comparisons.append(compare(workload))
        print(comparisons[-1].line(), flush=True)
    differing = sum(not comparison.agrees for comparison in comparisons)
    largest = max(comparison.whole.difference for comparison in comparisons)
    print(f"{len(comparisons)} workloads, {differing} beyond the tolerance; largest difference {largest:.6%}")
    if differing:
        raise typer.Exit(EXIT_DIFFERENT)


def cloudsim_jars() -> list[Path]:
    """The jars of CloudSim Plus, fetched where they are missing. Raises NotFetched."""
    import os

    from schemas.cache import cache_folder
    from streams import jars

    with _training_packages("cloudsim"):
        from trainer.cloudsim import JARS
    return jars.installed(jars.read_list(JARS), cache_folder(os.environ) / "cloudsim", "CloudSim Plus")


@app.command(epilog="Example: headrace demo --out results, then: headrace gap results --write fitted.yaml")
def gap(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(help="A folder of `headrace demo --out`, its trace.jsonl, or topics' records as JSON lines."),
    ] = None,
    from_kafka: Annotated[bool, typer.Option("--from-kafka", help="Read the pool's topics.")] = False,
    hours: Annotated[float, typer.Option(min=0, help="With --from-kafka: what arrived in the last hours.")] = 24.0,
    nodes: Annotated[Path | None, typer.Option(help="The nodes, where the logs do not say what they are.")] = None,
    out: Annotated[Path | None, typer.Option(help="A file for all figures, as JSON.")] = None,
    write: Annotated[Path | None, typer.Option(help="A settings file that gets the suggested settings.")] = None,
    config: Config = None,
) -> None:
    """Compare a logged run with the simulator: which of its settings the log contradicts, and what fits."""
    from dataclasses import replace

    from rich.console import Console

    from policy.episode import EpisodeSettings
    from policy.heuristics import HEURISTICS
    from schemas.errors import InvalidInput
    from schemas.node_file import read_nodes
    from streams import policies
    from streams.config import write_simulator
    from streams.installation import require_broker
    from streams.recent import recent_records
    from streams.topic_admin import check_topics

    with _training_packages():
        import scipy  # noqa: F401

        from trainer.gap import as_json, gap_of, show
        from trainer.log_files import read_logs
    if bool(logs) == from_kafka:
        raise InvalidInput("gap", "needs logs, or --from-kafka", "give one of the two")
    settings = _settings(config)
    log = read_logs(logs or [], read_nodes(nodes) if nodes else ())
    if from_kafka:
        require_broker(settings)
        check_topics(settings.kafka, settings.topics)
        for record in recent_records(settings.kafka, settings.topics, settings.pool, hours):
            log.apply(record)
    name = log.policy()
    policy = replace(settings.policy, name=name if name in HEURISTICS else "actor" if name else settings.policy.name)
    episode = EpisodeSettings(cluster=settings.cluster.simulator, state=settings.state, decide=settings.decide)
    found = gap_of(log, episode, policies.build(policy))
    show(found, Console(width=None if sys.stdout.isatty() else 160))
    if out is not None:
        out.write_text(as_json(found), encoding="utf-8")
    if write is not None:
        write_simulator(write, found.suggested())
        print(f"wrote cluster.simulator to {write}")


@app.command(epilog="Example: headrace plan --compare --out plans examples/etl_pipeline.yaml")
def plan(
    workflows: Files,
    nodes: Nodes = None,
    planner: Annotated[str, typer.Option(help="lookahead, heft, peft, cpop, min_min or max_min.")] = "lookahead",
    budget_ms: Annotated[float, typer.Option(min=0, help="Time that lookahead has for one plan.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of lookahead's chance.")] = 0,
    compare: Annotated[bool, typer.Option("--compare", help="Every planner, and how good a plan can be.")] = False,
    search_s: Annotated[float, typer.Option(min=0, help="With --compare: how long to search for the best.")] = 60,
    out: Annotated[Path | None, typer.Option(help="Folder for the plans, figures and pictures.")] = None,
    config: Config = None,
) -> None:
    """Plan each workflow by itself, from first to last task, on the empty nodes."""
    from rich.console import Console

    from policy.lookahead import LookaheadSettings
    from schemas.errors import InvalidConfiguration
    from streams import plans, policies
    from streams.client import read_files

    settings = _settings(config, cluster__nodes=nodes)
    specs = _specs(settings)
    search = LookaheadSettings(budget_ms=budget_ms, seed=seed)
    chosen = plans.PlanSettings(planner=planner, lookahead=search, search_ms=1000 * search_s)
    front: plans.Front | None = None
    if compare:
        try:
            with _training_packages():
                from trainer.pareto import front
        except InvalidConfiguration as missing:
            print(f"NSGA-II is left out: {missing}", file=sys.stderr)
    policy = policies.build(settings.policy)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for workflow in read_files(workflows, settings.pool):
        plans.run(workflow, specs, policy, chosen, console, front, compare, out)


@contextmanager
def _training_packages(extra: str = "train") -> Iterator[None]:
    """What is imported in the block comes with this extra."""
    from schemas.errors import InvalidConfiguration

    try:
        yield
    except ImportError as error:
        raise InvalidConfiguration(extra, f"needs more packages: {error}", f"install headrace[{extra}]") from error


def main() -> None:
    """Run the command line; an error of headrace's is one line on stderr."""
    try:
        app()
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)


if __name__ == "__main__":
    main()
