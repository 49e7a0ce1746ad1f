"""A group has one number in a step, whichever call names it."""

from __future__ import annotations

from rollout_traces.capture.groups import GroupNumbers
from rollout_traces.model.batch import ListElement


def elements(call: str, *places: int) -> list[ListElement]:
    return [ListElement(call, place) for place in places]


class TestElementsOfAList:
    def test_a_dropped_element_does_not_shift_those_after_it(self):
        assert GroupNumbers().of(elements("a", 0, 0, 2, 3, 3)).tolist() == [0, 0, 2, 3, 3]

    def test_the_lists_of_two_calls_are_different_groups(self):
        numbers = GroupNumbers()
        first = numbers.of(elements("a", 0, 2))
        second = numbers.of(elements("b", 0, 1, 2))
        assert first.tolist() == [0, 2]
        assert len({*first.tolist(), *second.tolist()}) == 5

    def test_a_rank_counts_from_its_own_first_number(self):
        assert GroupNumbers(1000).of(elements("a", 0, 2)).tolist() == [1000, 1002]
