"""Whose tasks a pool takes, for what pulls it (Q11). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tenants:
    """Whose tasks a pool takes: of `only` (None: of all), but for `but`."""

    only: Sequence[str] | None = None
    but: Sequence[str] = ()

    @property
    def everybody(self) -> bool:
        """Whether nobody is left out."""
        return self.only is None and not self.but

    def takes(self, tenant: str | None, named: Sequence[str]) -> bool:
        """Whether it takes tasks of this tenant; None stands for all but those `named`, and may hide one of `only` (as long as none of its pods ran)."""
        if tenant is None:
            return self.only is None or not set(self.only) <= set(named)
        return (self.only is None or tenant in self.only) and tenant not in self.but


EVERYBODY = Tenants()
