"""Database: where a namespace's queues live.

Guarantees: refers to Secrets of its own namespace only, by name and key; content never appears in it.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from poolkeeper.durations import Between, Duration, parse_duration
from poolkeeper.policy_parts import rule
from poolkeeper_operator.resources.parts import Conditions, Model, Peers, SecretRef, StatusModel

AUTO_NEEDS_ADMIN = "migrations: Auto needs adminSecretRef (the owner's connection); add it, or set migrations: Manual"


class Migrations(StrEnum):
    """Who changes the schema."""

    AUTO = "Auto"
    MANUAL = "Manual"


class Pooler(StrEnum):
    """What the connection strings for workers and readings go through."""

    NONE = "None"
    TRANSACTION = "Transaction"


class Roles(StrEnum):
    """As whom workers connect."""

    SHARED = "Shared"
    PER_POOL = "PerPool"


class DatabaseSpec(Model):
    """How to reach it and who migrates it."""

    model_config = ConfigDict(
        json_schema_extra=rule(
            "!has(self.migrations) || self.migrations != 'Auto' || has(self.adminSecretRef)", AUTO_NEEDS_ADMIN
        )
    )

    dsn_secret_ref: SecretRef = Field(description="Connection string for workers and the operator's readings.")
    direct_secret_ref: SecretRef | None = Field(
        None,
        description="A connection string past the pooler, for LISTEN and renewals. Of use only when dsnSecretRef goes through a pooler.",
    )
    admin_secret_ref: SecretRef | None = Field(
        None, description="The owner's connection string, for migrations by the operator. Workers never see it."
    )
    migrations: Migrations | None = Field(
        None,
        description="Auto: the operator applies them (needs adminSecretRef). Manual: the condition Ready names the command. Default: Auto with adminSecretRef, else Manual.",
    )
    pooler: Pooler = Field(
        Pooler.NONE,
        description="Transaction: dsnSecretRef goes through a pooler in transaction mode, such as pgbouncer. Without directSecretRef nothing is notified then: workers look every 5 s, the operator every tickInterval.",
    )
    roles: Roles = Field(
        Roles.SHARED,
        description="Shared: workers connect as dsnSecretRef says. PerPool: each pool has a login of its own, which may see its queues and tenants alone, in a Secret that the operator writes (it needs the right to, rbac.databaseRoles of the chart; the owner of the schema needs CREATEROLE).",
    )
    role_rotation: Annotated[Duration, Between("1h", "8760h")] = Field(
        parse_duration("720h"),
        description="With PerPool: the age at which a pool's password is replaced, without a restart. At once: another value of the annotation poolkeeper.dev/rotate-login of the WorkerPool.",
    )
    max_worker_connections: int | None = Field(
        None,
        ge=2,
        le=1_000_000,
        description="Most connections that the pods of all its pools hold together, two for each pod; shared fairly. No size is raised beyond it, not even to scaling.min. A rollout's surge and draining pods count, and are not prevented. Absent: no bound.",
    )
    network_peers: Peers = Field(
        (),
        description="Where the database is, for the network policies of its pools. Absent or empty: their egress is not restricted, and EgressUnrestricted says so.",
    )
    tick_interval: Annotated[Duration, Between("1s", "5m")] = Field(
        parse_duration("5s"), description="How often queues and pools are read, at one statement for all of them."
    )

    @property
    def migrates(self) -> bool:
        """Whether the operator applies migrations."""
        if self.migrations is None:
            return self.admin_secret_ref is not None
        return self.migrations is Migrations.AUTO

    @property
    def pooled(self) -> bool:
        """Whether workers must do without what a pooler in transaction mode does not carry."""
        return self.pooler is Pooler.TRANSACTION

    @model_validator(mode="after")
    def _auto_needs_admin(self) -> Self:
        if self.migrations is Migrations.AUTO and self.admin_secret_ref is None:
            raise ValueError(AUTO_NEEDS_ADMIN)
        return self


class DatabaseStatus(StatusModel):
    """What was found behind the reference."""

    observed_generation: int | None = Field(None, description="The generation that this status is about.")
    instance_id: str | None = Field(
        None, alias="instanceID", max_length=36, description="Identity of the installation in that database."
    )
    server_version: str | None = Field(None, max_length=64, description="Version of the Postgres server.")
    schema_version: int | None = Field(None, description="Version of the schema poolkeeper.")
    secret_version: str | None = Field(
        None, max_length=64, description="resourceVersion of the Secret in use; never its content."
    )
    trouble: str | None = Field(
        None,
        max_length=300,
        description="What is wrong, in the words of the conditions that say more; None while all is well.",
    )
    conditions: Conditions = ()
