"""What the schema must be like: its version and texts, who may what, its months and its upkeep. Pure."""

from collections.abc import Mapping
from typing import Any

from poolkeeper.doctor.finding import Finding, Unseen, fault, named, ok, unseen, warning

UPKEEP_WARNS, UPKEEP_FAILS = 600.0, 86_400.0
CLOCK = 1.0
MANY = 1000  # rows of a default partition are counted so far
APPLY = "run: poolkeeper migrate --apply, as the schema's owner"


def schema(facts: Mapping[str, Any]) -> Finding:
    """Whether this program works with the schema (contract 18)."""
    seen, supported = facts["installation"], facts["program"].supported
    if isinstance(seen, Unseen):
        return fault("schema", f"the installation cannot be read: {seen.why}", seen.remedy)
    if seen.schema_version is None or seen.schema_version < supported.start:
        return fault(
            "schema", f"its version is {seen.schema_version or 'none'}, this program needs {supported.start}", APPLY
        )
    if seen.schema_version >= supported.stop:
        return fault(
            "schema",
            f"its version is {seen.schema_version}, this program knows up to {supported.stop - 1}",
            "upgrade poolkeeper",
        )
    return ok("schema", f"version {seen.schema_version}, installation {seen.instance_id}")


def texts(facts: Mapping[str, Any]) -> Finding:
    """Whether the functions and the migrations that ran are those of this program."""
    store, program = facts["store"], facts["program"]
    ran = store["migrations"] or {}
    changed = [
        f"migration {version}"
        for version, checksum in program.migrations.items()
        if ran.get(version) not in {None, checksum}
    ]
    if changed:
        return fault(
            "functions", f"{named(changed)} was applied with another text", "restore the release that applied it"
        )
    if store["functions"] != program.functions:
        return warning(
            "functions",
            "the functions are those of another release than this program's",
            f"{APPLY}, by the newest release in use",
        )
    return ok("functions", "functions and migrations are those of this program")


def login(facts: Mapping[str, Any]) -> Finding:
    """Who this is: group roles and a row in poolkeeper.access (Q51)."""
    seen, access = facts["login"], facts["access"]
    if seen["owner"] is None:
        return unseen("login", Unseen(f'"{seen["login"]}" is known; there is no schema to have rights in', APPLY))
    if seen["owner"]:
        return ok("login", f'"{seen["login"]}" acts as the schema\'s owner: it may everything')
    if not seen["groups"]:
        return fault(
            "login",
            f'"{seen["login"]}" is in no group role: it may nothing',
            f'let it join one, as in GRANT poolkeeper_worker TO "{seen["login"]}", and give it a row in poolkeeper.access',
        )
    if isinstance(access, Unseen):
        return fault(
            "login",
            f'"{seen["login"]}" is in {named(seen["groups"])}, and: {access.why}',
            'give it a row in poolkeeper.access: "role" is its name, columns that are NULL mean all',
        )
    return ok("login", f'"{seen["login"]}" is in {named(seen["groups"])} and has its row in poolkeeper.access')


def rights(facts: Mapping[str, Any]) -> Finding:
    """Whether each group role may call what it is for, and nobody else anything (Q51)."""
    seen = facts["rights"]
    if seen["groups_missing"]:
        return fault(
            "rights",
            f"there is no role {named(seen['groups_missing'])}",
            f"let a login with CREATEROLE make them, then {APPLY}",
        )
    if seen["execute_missing"]:
        return fault(
            "rights",
            f"EXECUTE is missing: {named(seen['execute_missing'])}",
            f"{APPLY}; if it says that all is up to date, GRANT it",
        )
    if seen["public"]:
        return fault(
            "rights",
            f"open to others than its functions' callers: {named(seen['public'])}",
            "REVOKE ALL ON … FROM PUBLIC, and from whoever was granted it",
        )
    return ok("rights", "each group role may call what it is for, and tables are granted to nobody")


def owner(facts: Mapping[str, Any]) -> Finding:
    """By whose rights the functions run."""
    seen = facts["rights"]
    if seen["owner"] is None:
        return unseen("owner", Unseen("there is no schema poolkeeper", APPLY))
    if seen["foreign"]:
        return fault(
            "owner",
            f'the schema is "{seen["owner"]["name"]}"\'s, but not {named(seen["foreign"])}: functions run with the rights of their owner',
            "give them to the schema's owner: ALTER … OWNER TO",
        )
    words = f'schema, tables and functions are "{seen["owner"]["name"]}"\'s'
    return ok(
        "owner", f"{words}, a superuser; one without that power would do" if seen["owner"]["superuser"] else words
    )


def leftovers(facts: Mapping[str, Any]) -> Finding:
    """Rows of poolkeeper.access for logins that are gone: a new login of that name would inherit the rights."""
    count = facts["store"]["nobody"]
    if count:
        return warning(
            "access",
            f"{count} rows of poolkeeper.access name a login that does not exist; a new one of that name would have its rights",
            "take these rows away, or make the logins",
        )
    return ok("access", "each row of poolkeeper.access has its login")


def months(facts: Mapping[str, Any]) -> Finding:
    """Whether the history has room for the coming months, and nothing lies outside of its month."""
    store = facts["store"]
    rest = [
        f"{'at least ' if count >= MANY else ''}{count} rows of {table}"
        for table, count in store["rest"].items()
        if count
    ]
    if store["months_missing"]:
        return warning(
            "months",
            f"partitions are missing: {named(store['months_missing'])}{'; ' + named(rest) + ' lie in the default partition, which keeps their month from being made' if rest else ''}",
            "run: poolkeeper maintain; it makes them unless their rows lie in the default partition, where they do no harm and go by their age",
        )
    if rest:
        return warning(
            "months",
            f"{named(rest)} lie in the default partition: no month was there when they came",
            "nothing; they go by their age. Let the upkeep run, so that months are made ahead",
        )
    return ok("months", "this month and the next two have their partitions, the default ones are empty")


def indexes(facts: Mapping[str, Any]) -> Finding:
    """An index that is not valid is written and never read."""
    broken = facts["rights"]["indexes_invalid"]
    if broken:
        return fault(
            "indexes",
            f"not valid: {named(broken)}",
            "REINDEX INDEX CONCURRENTLY poolkeeper.…; drop what is named …_ccnew or …_ccold",
        )
    return ok("indexes", "all are valid")


def upkeep(facts: Mapping[str, Any]) -> Finding:
    """When what is old was last removed (Q52)."""
    ago = facts["store"]["upkeep_ago"]
    remedy = "let the operator run, or a worker outside of pods, or poolkeeper maintain each minute"
    if ago is None:
        return fault("upkeep", "it never ran: nothing is removed, no month is made", remedy)
    if ago > UPKEEP_FAILS:
        return fault("upkeep", f"it ran {ago / 3600:.0f} h ago: nothing old goes meanwhile", remedy)
    if ago > UPKEEP_WARNS:
        return warning("upkeep", f"it ran {ago / 60:.0f} min ago", remedy)
    return ok("upkeep", f"it ran {ago:.0f} s ago")


def schedules(facts: Mapping[str, Any]) -> Finding:
    """Whether somebody fires the slots of schedules, and all can be fired (Q34)."""
    found = facts["store"]["schedules"]
    told = f"the first by name is {found['first']}"
    if found["late"]:
        return fault(
            "schedules",
            f"of {found['late']} nobody has fired what is due for 2 minutes; {told}",
            "let the operator run, or a worker of the queue and tenant; paused queues are not among them",
        )
    if found["refused"]:
        return warning(
            "schedules",
            f"{found['refused']} could not be fired when somebody tried last; {told}",
            "poolkeeper schedule list says why, as REFUSED; each is tried again at least every 5 minutes",
        )
    return ok("schedules", "what is due is fired")


def versions(facts: Mapping[str, Any]) -> Finding:
    """Workers of other releases than this program's: release N's store serves those of N and N-1."""
    found, here = facts["store"]["versions"], facts["program"].version
    words = ", ".join(f"{count} of {version}" for version, count in sorted(found.items())) or "none"
    if set(found) - {here}:
        return warning(
            "worker versions",
            f"live sessions: {words}; this program is {here}",
            "finish the rollout; a store serves workers of its own release and the one before",
        )
    return ok("worker versions", f"live sessions: {words}")


def moved_clock(facts: Mapping[str, Any]) -> Finding:
    """The store's own time, which tests can move, must be the server's (Q23)."""
    ahead = float(facts["store"]["clock_ahead"])
    if abs(ahead) > CLOCK:
        return fault(
            "store clock",
            f"poolkeeper.clock() is {ahead:.0f} s off the server's time: it was replaced, as tests do",
            APPLY + "; if it says that all is up to date, restore the function from 10_clock.sql",
        )
    return ok("store clock", "poolkeeper.clock() is the server's time")
