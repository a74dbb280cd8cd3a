from __future__ import annotations

import itertools

import pytest

from store.upkeep.plans import CASES, Evidence, Point, SoundIndexFiles, plan_for


@pytest.mark.parametrize("evidence", [Evidence(*facts) for facts in itertools.product([True, False], repeat=5)])
def test_every_directory_has_exactly_one_plan(evidence: Evidence) -> None:
    matching = [
        plan
        for pattern, plan in CASES
        if all(wanted in (None, found) for wanted, found in zip(pattern, evidence, strict=True))
    ]
    assert len(matching) == 1, "exactly one, so that their order does not matter"
    plan = plan_for(evidence)
    assert plan is matching[0]
    if evidence.published and evidence.current and evidence.queues:
        assert plan is None
        return
    assert plan is not None
    assert (plan.begin is Point.FLUSHED) == (evidence.published and evidence.queues), "otherwise the queues are rebuilt"
    alive = evidence.published and evidence.current
    assert (plan.trusted is Point.CONFIRMED) == alive, "everything published is in the files"
    assert (plan.trusted is Point.FLUSHED) == (evidence.published and not alive)
    assert plan.closed_cleanly == (not alive and not evidence.abort), "then nothing may follow the end"
    assert (plan.filed is SoundIndexFiles.ALL) == (alive or not evidence.abort), "a clean close flushes the index"
    if not evidence.published:
        assert (plan.trusted is Point.LAST_SEGMENT) == (not evidence.abort), (
            "only the last segment of a clean log may be torn"
        )
        assert (plan.trusted is Point.CHECKPOINT) == (evidence.abort and evidence.checkpoint)
