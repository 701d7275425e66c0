"""The smallest application: one task type, one payload, one checkpoint."""

import asyncio

from pydantic import BaseModel

from poolkeeper import Context, Poolkeeper

app = Poolkeeper()


class Greeting(BaseModel):
    name: str
    times: int = 3


@app.task("hello.greet")
async def greet(greeting: Greeting, ctx: Context) -> dict[str, int]:
    done = ctx.checkpoint or 0  # where an earlier delivery stopped
    for number in range(done, greeting.times):
        print(f"Hello {greeting.name}, number {number + 1} of {greeting.times}", flush=True)
        await ctx.save_checkpoint(number + 1)
        await asyncio.sleep(0.1)
    return {"greeted": greeting.times}
