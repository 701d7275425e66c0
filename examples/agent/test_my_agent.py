"""The agent's promise, shown by the kit: no finished call is ever paid for twice, wherever a worker dies."""

import my_agent
import pytest

from poolkeeper import RetryAfter
from poolkeeper.testing import Point

QUESTION = {"prompt_tokens": 10, "generated_tokens": 5, "seconds": [0, 0, 0]}


class Model:
    """What the agent calls; it remembers what was asked."""

    def __init__(self):
        self.asked = []
        self.busy = 0

    def __call__(self, task, step, seconds):
        if self.busy:
            self.busy -= 1
            raise RetryAfter(30, "the model is busy")
        self.asked.append(step)
        return f"answer to {step}"


@pytest.fixture
def model(monkeypatch):
    made = Model()
    monkeypatch.setattr(my_agent, "ask_model", made)
    return made


@pytest.fixture
def kit(poolkeeper_kit):
    return poolkeeper_kit(my_agent.app)


def test_an_answer_takes_three_calls(kit, model):
    assert kit.run(my_agent.answer, QUESTION).result["tokens"] == 15
    assert model.asked == ["plan", "write", "check"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_finished_call_is_never_made_again(kit, model, number):
    task = kit.submit(my_agent.answer, QUESTION)
    kit.deliver(task, crash_at=Point.after_checkpoint(number))
    kit.finish(task)
    assert model.asked == ["plan", "write", "check"]


def test_a_call_that_was_cut_off_is_the_only_one_that_is_made_again(kit, model):
    task = kit.submit(my_agent.answer, QUESTION)
    kit.deliver(task, crash_at=Point.before_checkpoint(2))
    kit.finish(task)
    assert model.asked == ["plan", "write", "write", "check"]


def test_the_answer_is_the_same_wherever_it_crashed(kit, model):
    assert len(kit.assert_survives_crashes(my_agent.answer, QUESTION)) == 8
    assert len(kit.assert_survives_lease(my_agent.answer, QUESTION)) == 8


def test_a_busy_model_is_asked_again_when_it_said(kit, model):
    model.busy = 1
    task = kit.submit(my_agent.answer, QUESTION)
    before = kit.clock.now()
    assert kit.deliver(task).retry_after == 30
    kit.finish(task)
    assert (kit.clock.now() - before).total_seconds() >= 30


def test_a_canceled_task_asks_nothing_more(kit, model):
    kit.deliver(kit.submit(my_agent.answer, QUESTION), cancel_at=Point.after_checkpoint(1))
    assert len(model.asked) < 3
