"""A form that is sent twice acts once."""

from __future__ import annotations

import asyncio

import pytest

from sbp_core.errors import ConfigurationError, InvalidRequestError, SbpError
from sbp_core.web.console.site import KEPT_MAX, Done, Submissions, check_typed

DONE = Done("/streams", ("created",))


class Action:
    """An action that waits until it may end."""

    def __init__(self, *errors: Exception) -> None:
        self.count = 0
        self.may_end = asyncio.Event()
        self._errors = list(errors)

    async def __call__(self) -> Done:
        self.count += 1
        await self.may_end.wait()
        if self._errors:
            raise self._errors.pop()
        return DONE


def test_a_double_click_gets_the_same_answer_twice():
    async def body():
        sent, act, key = Submissions(), Action(), Submissions.new_key()
        both = [asyncio.create_task(sent.once(key, act)) for _ in range(2)]
        await asyncio.sleep(0)
        assert sent.maybe_notice(key) == ()
        act.may_end.set()
        assert await asyncio.gather(*both) == [DONE, DONE]
        assert await sent.once(key, act) == DONE
        assert act.count == 1
        assert sent.maybe_notice(key) == ("created",)
        assert sent.maybe_notice(Submissions.new_key()) == ()

    asyncio.run(body())


def test_an_action_goes_on_when_its_caller_leaves():
    async def body():
        sent, act, key = Submissions(), Action(), Submissions.new_key()
        caller = asyncio.create_task(sent.once(key, act))
        await asyncio.sleep(0)
        caller.cancel()
        act.may_end.set()
        await sent.close()
        assert sent.maybe_notice(key) == ("created",)

    asyncio.run(body())


def test_a_refused_action_may_be_tried_again_with_the_same_form():
    async def body():
        sent, act, key = Submissions(), Action(SbpError("no")), Submissions.new_key()
        act.may_end.set()
        with pytest.raises(SbpError, match="no"):
            await sent.once(key, act)
        assert sent.maybe_notice(key) == ()
        assert await sent.once(key, act) == DONE
        assert act.count == 2

    asyncio.run(body())


def test_what_is_remembered_is_bounded_and_running_actions_are_kept():
    async def body():
        sent, running, act = Submissions(), Action(), Action()
        act.may_end.set()
        first = Submissions.new_key()
        waiting = asyncio.create_task(sent.once(first, running))
        await asyncio.sleep(0)
        keys = [Submissions.new_key() for _ in range(KEPT_MAX + 1)]
        for key in keys:
            await sent.once(key, act)
        kept = [key for key in keys if sent.maybe_notice(key)]
        assert kept == keys[2:], "the running action is one of those that are remembered"
        running.may_end.set()
        assert await waiting == DONE
        assert sent.maybe_notice(first) == ("created",)

    asyncio.run(body())


def test_a_form_without_a_key_does_nothing():
    async def body():
        act = Action()
        with pytest.raises(InvalidRequestError, match="reload the page"):
            await Submissions().once("", act)
        assert act.count == 0

    asyncio.run(body())


def test_a_name_has_to_be_typed_as_it_is():
    check_typed("orders", " orders ")
    for typed in ("", "Orders", "order"):
        with pytest.raises(ConfigurationError, match="type orders to confirm"):
            check_typed("orders", typed)
