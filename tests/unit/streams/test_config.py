"""Settings from a YAML file and from variables; whatever cannot be meant is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import InvalidConfiguration
from schemas.records import WorkflowClass
from streams.config import PREFIX, Settings, load

pytestmark = pytest.mark.usefixtures("no_variables")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headrace.yaml"


def test_without_file_and_variables_the_defaults_hold() -> None:
    settings = load()

    assert settings == Settings()
    assert settings.topics.partitions == 4


def test_a_file_sets_what_it_names_and_nothing_else(file: Path) -> None:
    file.write_text("pool: gpu-farm\nworker:\n  port: 9200\n  drain_s: 5\n")

    settings = load(file)

    assert settings.pool == "gpu-farm"
    assert (settings.worker.port, settings.worker.drain_s) == (9200, 5.0)
    assert settings.worker.group == Settings().worker.group


def test_an_empty_file_sets_nothing(file: Path) -> None:
    file.write_text("# nothing yet\n")

    assert load(file) == Settings()


def test_a_variable_wins_over_the_file_and_leaves_the_rest_of_its_section(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("worker:\n  port: 9200\n  group: of-the-file\n")
    monkeypatch.setenv("HEADRACE_WORKER__PORT", "9300")

    settings = load(file)

    assert (settings.worker.port, settings.worker.group) == (9300, "of-the-file")


def test_a_variable_names_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("pool: named-by-variable\n")
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))

    assert load().pool == "named-by-variable"


def test_a_variable_reaches_a_section_within_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CLUSTER__SIMULATOR__SEED", "7")

    assert load().cluster.simulator.seed == 7


def test_rules_in_a_variable_are_a_json_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_POLICY__NODE_FILTER_RULES", '["node.cpu >= 8", "not task.critical"]')

    assert load().policy.node_filter_rules == ["node.cpu >= 8", "not task.critical"]


def test_rules_in_a_variable_that_are_no_list_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_POLICY__NODE_FILTER_RULES", "node.cpu >= 8")

    with pytest.raises(InvalidConfiguration, match=r"policy\.node_filter_rules.*node\.cpu >= 8"):
        load()


@pytest.mark.parametrize(
    ("text", "name", "meant"),
    [
        ("wroker: {}", "wroker", "worker"),
        ("worker: {prot: 1}", "worker.prot", "port"),
        ("cluster: {simulator: {sed: 1}}", "cluster.simulator.sed", "seed"),
    ],
)
def test_an_unknown_key_of_the_file_is_refused_with_the_one_that_was_meant(
    file: Path, text: str, name: str, meant: str
) -> None:
    file.write_text(text)

    with pytest.raises(InvalidConfiguration, match=rf"{file}: .*'{name}'.*'{meant}'"):
        load(file)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("HEADRACE_POOOL", "pool"),
        ("HEADRACE_WORKER__PROT", "port"),
        ("HEADRACE_CLUSTER__SIMULATOR__SED", "seed"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_setting_that_was_meant(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")

    with pytest.raises(InvalidConfiguration, match=rf"{variable}: .*'{meant}'"):
        load()


@pytest.mark.parametrize("variable", ["PATH", "HEADRACE_CACHE", "HEADRACE_TEST_BOOTSTRAP", "HEADRACES_POOL"])
def test_variables_that_are_no_settings_do_no_harm(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "something")

    assert load() == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_level", "LOUD"),
        ("kafka.bootstrap_servers", "localhost"),
        ("kafka.bootstrap_servers", "localhost:9092,other:port"),
        ("kafka.linger_ms", "-1"),
        ("topics.prefix", ""),
        ("topics.partitions", "0"),
        ("topics.partitions", "many"),
        ("topics.replication_factor", "0"),
        ("worker.group", ""),
        ("worker.port", "70000"),
        ("worker.drain_s", "0"),
        ("worker.session_timeout_s", "nan"),
        ("state.max_attempts", "0"),
        ("policy.temperature", "-0.1"),
        ("policy.deadline_ms", "0"),
        ("policy.device", "tpu"),
        ("cluster.time_scale", "0"),
        ("cluster.sample_s", "inf"),
        ("broker.heap_mib", "16"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_the_name_of_its_setting(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX + name.upper().replace(".", "__"), value)

    with pytest.raises(InvalidConfiguration) as refused:
        load()

    assert refused.value.where == name
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"worker: [", "is no valid YAML"),
        (b"- worker\n- cluster\n", "is no mapping"),
        (b"pool: a\n---\npool: b\n", "is no mapping"),
        (b"pool: a\npool: b\n", "stands twice"),
        (b"pool: \xff\xfe", "UTF-8"),
    ],
)
def test_a_file_that_is_no_mapping_of_settings_is_refused_in_one_line(file: Path, content: bytes, problem: str) -> None:
    file.write_bytes(content)

    with pytest.raises(InvalidConfiguration, match=f"{file}: .*{problem}") as refused:
        load(file)

    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{file}: there is no such file"):
        load(file)


def test_settings_cannot_be_changed_after_they_are_read() -> None:
    settings = load()

    with pytest.raises(ValueError, match="frozen"):
        settings.pool = "another"


def test_a_list_in_a_variable_is_a_json_list(no_variables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CANARY__SHARES", "[0.05, 1]")
    monkeypatch.setenv("HEADRACE_CANARY__CLASSES", '["etl_batch"]')
    monkeypatch.setenv("HEADRACE_CANARY__GUARDRAILS__ALPHA", "0.05")

    found = load().canary

    assert (found.shares, found.classes, found.guardrails.alpha) == ((0.05, 1.0), (WorkflowClass.ETL_BATCH,), 0.05)
