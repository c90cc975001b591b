"""Reading scenarios: values as written, YAML 1.2's reading of plain words, and --set."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from netsched.document import MAX_DEPTH, override, read
from netsched.errors import ScenarioError
from netsched.hints import nearest
from netsched.model import Connections, Control, Emulation, Spec, Transport
from netsched.scenario import build, check, load

ROOT = Path(__file__).parents[1]

FULL = """\
name: full
description: everything said
fabric: {kind: leaf_spine, leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 10Gbit/s}
workload:
  - {kind: incast, senders: [h2, h3], receiver: h1, size: 1MB, at: 1.5ms}
  - {kind: shuffle, size: 8Mbit}
policies:
  - fair
  - tensorexpress: {levels: 4}
  - {kind: tensorexpress, levels: 2}
queues: 4
seed: 7
horizon: 90s
transport: {connections: per-pair}
control: {delay: 200us, period: 10ms}
emulation: {scale: 0.01, chunk: 32KiB, delay: best-effort}
"""

SHORT = """\
fabric: {kind: single_switch, hosts: 4, rate: 1Gbit/s}
workload: {kind: incast, senders: all, receiver: h1, size: 1MB}
policies: [fair]
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "s.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_every_key_of_a_scenario_is_read(write):
    scenario = load(write(FULL))
    assert scenario.name == "full"
    assert scenario.fabric == Spec(
        "leaf_spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "10Gbit/s"}
    )
    assert [spec.name for spec in scenario.workload] == ["incast", "shuffle"]
    assert scenario.policies == (
        Spec("fair"),
        Spec("tensorexpress", {"levels": 4}),
        Spec("tensorexpress", {"levels": 2}),
    )
    assert (scenario.queues, scenario.seed, scenario.horizon) == (4, 7, 90.0)
    assert scenario.transport == Transport(Connections.PER_PAIR)
    assert scenario.control.delay == pytest.approx(200e-6)
    assert scenario.control.period == pytest.approx(10e-3)
    assert scenario.emulation == Emulation(scale=0.01, chunk=32768, delay="best-effort")
    assert scenario.source == yaml.safe_load(FULL), "written back beside the results as it was read"


def test_defaults_are_those_of_the_model(write):
    scenario = load(write(SHORT, "short-one.yaml"))
    assert scenario.name == "short-one", "the file's name where none is given"
    assert (scenario.queues, scenario.seed, scenario.horizon) == (8, 0, math.inf)
    assert scenario.transport == Transport()
    assert scenario.control == Control()
    assert scenario.emulation is None


def test_unlimited_queues_and_horizon(write):
    scenario = load(write(SHORT + "queues: unlimited\nhorizon: unlimited\n"))
    assert scenario.queues is None
    assert scenario.horizon == math.inf


def test_a_scenario_written_back_loads_as_the_same(write):
    scenario = load(write(FULL))
    again = load(write(yaml.safe_dump(dict(scenario.source)), "again.yaml"))
    assert (again.fabric, again.workload, again.policies) == (
        scenario.fabric,
        scenario.workload,
        scenario.policies,
    )


def test_built_pieces_fit_the_description(write):
    built = build(load(write(FULL)))
    assert built.fabric.hosts == ("h1", "h2", "h3", "h4")
    # incast: 2 senders; shuffle: 4 x 3 ordered pairs of 8 Mbit = 1 MB.
    assert built.ready[0].workload.n_flows == 2 + 12
    assert built.ready[0].workload.flows.size.sum() == 14e6
    assert [ready.policy.name for ready in built.ready] == ["fair", "tensorexpress", "tensorexpress"]


def test_check_states_counts_with_units(write):
    text = check(load(write(SHORT)))
    assert "4 hosts, 8 directed links (1 Gbit/s)" in text
    assert "1 job, 1 stage, 1 coflow, 3 flows, 0 compute tasks" in text
    assert "3 MB" in text


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_scenarios_are_sound(path):
    swept = "\nsweep:" in path.read_text()
    scenario = load(path, ["sweep=null"] if swept else [])
    assert scenario.name == path.stem
    if scenario.name != "fb2010":  # its trace is not part of the repository
        assert build(scenario).ready[0].workload.n_flows > 0


# ------------------------------------------------------------------ YAML as 1.2 has it


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("true", True),
        ("1e3", 1000.0),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("0x10", 16),
        ("0o17", 15),
        ("'012'", "012"),
        ("-3", -3),
        (".5", 0.5),
        ("~", None),
        ("", None),
        ('"1"', "1"),
        ("[1, a]", [1, "a"]),
    ],
)
def test_scalars_read_as_yaml_1_2(text, value, write):
    assert read(write(f"key: {text}\n")).data == {"key": value}


def test_the_merge_key_of_yaml_1_1_is_an_ordinary_key(write):
    assert read(write("<<: {a: 1}\n")).data == {"<<": {"a": 1}}


# Line breaks and control characters are folded or refused inside quotes, by YAML's own rules.
words = st.text(
    st.characters(min_codepoint=32, exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cn", "Co")), max_size=12
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(-1e17, 1e17) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(words, plain, min_size=1, max_size=5))
def test_json_is_read_as_json_has_it(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("json") / "s.yaml"
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    assert read(path).data == data


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "s.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        assert isinstance(read(path).data, dict)
    except ScenarioError as error:
        assert str(error).startswith(f"{path}:")
        assert len(str(error).splitlines()) == 1


def test_nesting_up_to_the_limit_is_read(write):
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert read(write(f"key: {deep}\n")).data


# ------------------------------------------------------------------ --set


def test_set_reaches_mappings_lists_and_new_sections(write):
    scenario = load(
        write(FULL),
        [
            "fabric.leaves=3",
            "workload.1.size=2MB",
            "policies.1.tensorexpress.levels=3",
            "seed=9",
            "queues=unlimited",
            "workload.0.senders=[h3, h4]",
        ],
    )
    assert scenario.fabric.params["leaves"] == 3
    assert scenario.workload[1].params["size"] == "2MB"
    assert scenario.workload[0].params["senders"] == ["h3", "h4"]
    assert scenario.policies[1].params == {"levels": 3}
    assert (scenario.seed, scenario.queues) == (9, None)
    assert scenario.source["seed"] == 9


def test_set_enters_a_single_workload_without_a_number(write):
    assert load(write(SHORT), ["workload.size=5MB"]).workload[0].params["size"] == "5MB"


def test_set_makes_a_section_that_was_not_there(write):
    assert load(write(SHORT), ["emulation.scale=0.1"]).emulation == Emulation(scale=0.1)


def test_set_leaves_the_document_as_it_was(write):
    document = read(write(FULL))
    override(document, ["fabric.leaves=99"])
    assert document.data["fabric"]["leaves"] == 2


def test_later_settings_win(write):
    assert load(write(SHORT), ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed", "--set seed: write --set key.path=value, such as --set fabric.hosts=16"),
        ("a..b=1", "--set a..b=1: write --set key.path=value, such as --set fabric.hosts=16"),
        ("=1", "--set =1: write --set key.path=value, such as --set fabric.hosts=16"),
        (
            "workload.size=1MB",
            "--set workload.size=1MB: workload is a list of 2: write workload.0, not 'size'",
        ),
        (
            "workload.2.size=1MB",
            "--set workload.2.size=1MB: workload is a list of 2: write workload.0, not '2'",
        ),
        ("name.x=1", "--set name.x=1: name is the single value 'full', it has no 'x' inside"),
        ("seed=[1", "--set seed=[1:1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("seed=.nan", "--set seed=.nan:1: .nan is not a finite number"),
        ("queus=3", None),
        ("fabric.leafs=3", None),
        ("queues=0", "--set queues=0: queues: 0 is not right: write 1 to 8 priority classes, or unlimited"),
        (
            "fabric.leaves.x=3",
            "--set fabric.leaves.x=3: fabric.leaves is the single value 2, it has no 'x' inside",
        ),
    ],
)
def test_a_wrong_setting_names_the_flag(setting, message, write):
    with pytest.raises(ScenarioError) as caught:
        load(write(FULL), [setting])
    if message is None:
        key = setting.split("=")[0]
        assert str(caught.value).startswith(f"--set {setting}: {key}: unknown key: did you mean ")
    else:
        assert str(caught.value) == message


def test_nearest_asks_only_where_something_is_near():
    assert nearest("sebv", ["fair", "sebf"]) == "did you mean 'sebf'? (good: fair, sebf)"
    assert nearest("zzz", ["fair", "sebf"]) == "(good: fair, sebf)"
    assert nearest("SEBF", ["fair", "sebf"]) == "did you mean 'sebf'? (good: fair, sebf)"
    assert nearest("x", []) == "it is not taken here"
