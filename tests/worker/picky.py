"""An application whose payloads are checked by code that raises what no check should."""

from pydantic import BaseModel, field_validator

from poolkeeper import Poolkeeper

app = Poolkeeper()


class Picky(BaseModel):
    """A payload whose check raises what no check should."""

    how: str

    @field_validator("how")
    @classmethod
    def look(cls, how: str) -> str:
        if how == "raise":
            raise RuntimeError("this validator is broken")
        return how


@app.task("t.picky", isolation="process")
def picky(payload: Picky) -> str:
    return payload.how
