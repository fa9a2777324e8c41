"""`--topics`: which passes record a topic, how it goes together with `--steps`, and where else it is taken."""

from __future__ import annotations

import itertools
import json

import pytest

import distprof
from distprof.compat.megengine import Profiler
from distprof.compat.megengine.chrome_timeline import DEFAULT
from distprof.contract.passes import ARRIVALS, MEMORY, RECORDED_BY, SYNC, TOPIC_NAMES, TRACE, WAIT, Topic, parse_topics
from distprof.errors import UsageError
from distprof.integrations.joined_recording import JoinedRecording
from distprof.launch.deepspeed_config import FlopsProfilerSection
from distprof.recording.plan import StepPlan, asked_plan
from support.jobs import SCRIPTS, record_run, torchrun

PASSES_OF = {"command": {TRACE}, "operator": {"count", TRACE}, "tensor_lifetime": {MEMORY}, "tensor_prop": {SYNC},
             "sync": {SYNC}, "scope": {"time", TRACE}, "memory": {MEMORY}, "shape_infer": {ARRIVALS}}


def passes(plan: StepPlan) -> set[str]:
    return {name for name, steps in plan.steps.items() if steps} - {WAIT}


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_a_topic_is_recorded_by_its_passes_and_by_no_other(topic):
    plan = asked_plan(topics=topic)
    assert passes(plan) == PASSES_OF[topic] and plan.steps[WAIT] == 2
    assert asked_plan(topics=topic.upper()) == plan
    for ranks in (1, 2, 8):
        assert passes(plan.for_ranks(ranks)) == PASSES_OF[topic]
        assert StepPlan.parse(str(plan.for_ranks(ranks))).for_ranks(ranks) == plan.for_ranks(ranks)


@pytest.mark.parametrize("pair", [*itertools.combinations(TOPIC_NAMES, 2), TOPIC_NAMES])
def test_topics_are_recorded_by_the_passes_of_all_of_them(pair):
    assert passes(asked_plan(topics=" | ".join(pair).upper())) == set().union(*(PASSES_OF[one] for one in pair))


def test_words_are_those_of_megengine():
    assert Profiler.SHAPE_INFER is Topic.SHAPE_INFER and sum(RECORDED_BY) == Topic.ALL
    assert parse_topics("OPERATOR|SCOPE") == DEFAULT
    assert parse_topics("all") == Topic.ALL


@pytest.mark.parametrize(("text", "told"), [
    ("operator,snyc", "did you mean 'sync'?"), ("shape-infer", "did you mean 'shape_infer'?"),
    (",", "choose from command, operator, tensor_lifetime"), ("3", "--topics operator,sync")])
def test_what_is_no_topic_is_refused(text, told):
    with pytest.raises(UsageError) as caught:
        asked_plan(topics=text)
    assert told in str(caught.value)


def test_steps_say_how_many_steps_the_passes_have_and_add_others():
    assert asked_plan("sync=5,wait=9", "sync").steps == asked_plan(topics="sync").steps | {SYNC: 5, WAIT: 9}
    assert passes(asked_plan("time=1", "sync")) == {SYNC, "time"}
    assert asked_plan("time=1") == StepPlan(time=1) and asked_plan() == StepPlan()


@pytest.mark.parametrize(("steps", "topics", "told"), [
    ("sync=0", "sync", "--topics sync needs steps of the sync pass, but --steps has sync=0"),
    ("trace=0,sync=3", "operator,tensor_prop", "--topics operator needs steps of the trace pass, but --steps has "
                                               "trace=0"),
    (StepPlan(), "tensor_prop", "--topics tensor_prop needs steps of the sync pass, but --steps has sync=0"),
    ("sync", "sync", "'sync' in --steps needs a number of steps")])
def test_steps_that_contradict_topics_are_refused(steps, topics, told):
    with pytest.raises(UsageError) as caught:
        asked_plan(steps, topics)
    assert told in str(caught.value) and caught.value.hint


def test_a_config_of_deepspeed_keeps_its_first_step_and_what_its_report_is_made_of():
    section = FlopsProfilerSection(enabled=True, profile_step=7)
    plan = asked_plan(topics="sync", default=section.plan(), also=("count", "time"))
    assert passes(plan) == {"count", "time", SYNC} and plan.steps[WAIT] == 7


def test_callbacks_take_topics_as_arguments_or_from_the_environment(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="unknown topic"):
        JoinedRecording(tmp_path, topics="nothing")
    monkeypatch.setenv("DISTPROF_TOPICS", "sync")
    for settings, expected in (({}, {SYNC}), ({"topics": "scope"}, {"time", TRACE}), ({"steps": "time=1"}, None)):
        joined = JoinedRecording(tmp_path / f"run{len(list(tmp_path.iterdir()))}", **settings)
        joined.open()
        found = joined.recorder.plan
        joined.close()
        assert passes(found) == expected if expected else found == StepPlan(time=1).for_ranks(1)


def test_a_recorder_takes_topics(tmp_path):
    with distprof.record(tmp_path / "run", topics="tensor_prop", steps="sync=1,wait=1") as recorder:
        assert passes(recorder.plan) == {SYNC}


@pytest.mark.job
@pytest.mark.parametrize("launcher", ["distprof run", "DISTPROF_OUT"])
def test_a_job_records_what_its_topics_ask_for(tmp_path, launcher):
    script, run = SCRIPTS / "synchronises.py", tmp_path / "run"
    if launcher == "distprof run":
        record_run(run, 2, script, flags=("--topics", "SYNC|SCOPE", "--steps", "trace=1"), DISTPROF_TOPICS="wrong")
    else:
        torchrun(2, script, DISTPROF_OUT=str(run), DISTPROF_TOPICS="sync,scope", DISTPROF_STEPS="trace=1")
    for rank in (0, 1):
        about = json.loads((run / f"rank{rank:05}" / "rank.json").read_text())
        assert about["plan"] == "wait=2,count=0,time=3,sync=2,trace=1,arrivals=0"
