"""The class table: what is on the wire for each class, and that nothing in it collides."""

from __future__ import annotations

import pytest

from netsched import marking


def test_the_table_is_the_one_that_the_switch_program_and_the_documents_state():
    assert [marking.dscp_of(cls) for cls in range(8)] == [40, 36, 32, 20, 18, 16, 8, 0]


def test_code_points_are_distinct_valid_and_clear_of_reserved_ranges():
    # 24-31: PFC priority 3 under the default DSCP >> 3 map; 46 and 48-63: voice, CNP and routing.
    used = {*marking.DSCP_OF_CLASS, marking.CONTROL_DSCP}
    assert len(used) == 9
    assert not used & {*range(24, 32), 46, *range(48, 64)}
    assert all(0 <= dscp <= 63 for dscp in used)


@pytest.mark.parametrize("queues", range(1, 9))
def test_the_last_class_is_unmarked_and_the_others_come_from_the_top(queues):
    dscps = [marking.dscp_of(cls, queues) for cls in range(queues)]
    assert dscps[-1] == 0
    assert dscps[:-1] == [40, 36, 32, 20, 18, 16, 8][: queues - 1]


@pytest.mark.parametrize("queues", range(1, 9))
def test_class_of_is_the_inverse_and_unknown_code_points_are_unmarked(queues):
    assert [marking.class_of(marking.dscp_of(cls, queues), queues) for cls in range(queues)] == [
        *range(queues)
    ]
    assert marking.class_of(46, queues) == queues - 1
    assert marking.class_of(marking.CONTROL_DSCP, queues) == 0


@pytest.mark.parametrize(("cls", "queues"), [(-1, 8), (8, 8), (2, 2), (0, 0), (0, 9)])
def test_a_class_that_the_port_does_not_have_is_refused(cls, queues):
    with pytest.raises(ValueError, match=r"class = |queues = "):
        marking.dscp_of(cls, queues)


def test_tos_is_four_times_the_dscp_and_keeps_the_ecn_bits():
    # RFC 2474: DSCP is the upper six bits; RFC 3168: ECN the lower two.
    assert marking.tos_of(40) == 0xA0
    assert marking.tos_of(40, old_tos=0x4A | 0b10) == 0xA2
    assert marking.dscp_in(0xA2) == 40


def test_names_are_read_and_a_tos_byte_is_recognised_as_the_mistake_it_is():
    assert marking.parse_dscp("cs5") == 40 == marking.parse_dscp(40)
    assert marking.name_of(36) == "AF42"
    assert marking.name_of(7) == "DSCP 7"
    with pytest.raises(ValueError, match="DSCP 40"):
        marking.parse_dscp(160)
    with pytest.raises(ValueError, match="not a DSCP"):
        marking.parse_dscp("lowcost")
