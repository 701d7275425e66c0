"""An example agent: a task is answered by three calls of a model, and no finished call is ever paid for twice.

After each call the answers so far are saved as a checkpoint. A delivery that begins after a crash starts with the
first call that has no answer yet. A call that was cut off in the middle is the only one that is made again.
"""

import json
import os
import signal
import urllib.error
import urllib.request
from typing import Any

from pydantic import BaseModel

from poolkeeper import Context, Poolkeeper, RetryAfter

STEPS = ("plan", "write", "check")

app = Poolkeeper()


class Question(BaseModel):
    """What is asked; `seconds` is how long the model will think about each step."""

    prompt_tokens: int
    generated_tokens: int
    seconds: list[float]


@app.task("agent.answer")
def answer(question: Question, ctx: Context) -> dict[str, Any]:
    """Go through the steps that have no answer yet."""
    answers: list[str] = ctx.checkpoint or []
    for number in range(len(answers), len(STEPS)):
        answers.append(ask_model(str(ctx.task_id), STEPS[number], question.seconds[number]))
        ctx.save_checkpoint_sync(answers)
    return {"answers": answers, "tokens": question.prompt_tokens + question.generated_tokens}


@app.task("agent.poison")
def poison(_question: Any) -> None:
    """A bug that ends the whole process, as a fault in native code would: no exception to catch, no time to say anything."""
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(137)  # the first process of a container is immune to signals that it sends itself


def ask_model(task: str, step: str, seconds: float) -> str:
    """Call the model's HTTP API; when it is too busy, the task comes back at the time that it names."""
    call = urllib.request.Request(  # noqa: S310  # the URL is the pool's own setting
        os.environ["MODEL_URL"],
        data=json.dumps({"task": task, "step": step, "seconds": seconds}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(call, timeout=60) as response:  # noqa: S310
            return str(json.load(response)["answer"])
    except urllib.error.HTTPError as error:
        if error.code == 429:
            raise RetryAfter(float(error.headers["Retry-After"]), "the model is busy") from error
        raise
