from iobench.recording.kinds import (
    CONSUMER_KINDS,
    HANDOVER_KINDS,
    LIFE_KINDS,
    WORKER_KINDS,
    Kind,
    stage_name,
)


def test_every_kind_is_in_exactly_one_group():
    groups = [WORKER_KINDS, HANDOVER_KINDS, CONSUMER_KINDS, LIFE_KINDS]
    assert sorted(kind for group in groups for kind in group) == sorted(Kind)


def test_a_stage_is_spelled_with_its_label():
    assert stage_name(Kind.SUBMIT_QUEUE) == "submit_queue"
    assert stage_name(Kind.FUSED, "read+decode") == "fused:read+decode"
