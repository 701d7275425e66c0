"""Which login of a pool is made, and which may go (O5); and how its Secret is written and read."""

import base64
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolkeeper.store.logins import dsn_as, new_password, password_of, verifier
from poolkeeper_operator.act import loginsecret
from poolkeeper_operator.decide.logins import OTHER, SETTLED, Issued, Plan, Seen, plan
from poolkeeper_operator.resources import DatabaseSpec

NOW = datetime(2026, 11, 30, tzinfo=UTC)
MONTH = timedelta(days=30)
QUIET, USED, SHUT = Seen(open=True, connections=0), Seen(open=True, connections=2), Seen(open=False, connections=0)


def steps(issued, there, wish="", every=MONTH):
    return plan(issued, there, now=NOW, every=every, wish=wish)


def issued(slot="a", age=timedelta(0), wish=""):
    return Issued(slot, NOW - age, wish)


def test_the_first_login_is_the_one_that_is_used_least():
    assert steps(None, {}).make == "a"
    assert steps(None, {"a": QUIET}).make == "b"
    assert steps(None, {"a": USED, "b": QUIET}).make == "b"
    assert steps(None, {"a": USED, "b": Seen(open=True, connections=1)}).make == "b"


def test_a_login_of_its_age_is_replaced_by_the_other_one():
    """O5: in turn; at once where somebody asks for it, and once for each wish."""
    assert steps(issued(age=MONTH), {"a": USED}).make == "b"
    assert steps(issued("b", age=MONTH), {"b": USED}).make == "a"
    assert steps(issued(age=timedelta(hours=1)), {"a": USED}, every=timedelta(hours=1)).make == "b"
    assert steps(issued(age=MONTH - timedelta(seconds=1)), {"a": USED}) == Plan()
    assert steps(issued(), {"a": USED}, wish="x").make == "b"
    assert steps(issued(wish="x"), {"a": USED}, wish="x") == Plan()
    assert steps(issued(wish="x"), {"a": USED}) == Plan(), "a wish that was taken back is none"


def test_the_login_before_has_its_time_and_its_connections():
    """O5: a third one waits for both, whoever asks for it."""
    long = SETTLED
    assert steps(issued("b", age=SETTLED / 2), {"a": QUIET, "b": USED}, wish="x") == Plan()
    assert steps(issued("b", age=long), {"a": USED, "b": USED}, wish="x").make is None
    assert steps(issued("b", age=long), {"a": QUIET, "b": USED}, wish="x").make == "a"
    assert steps(issued("b", age=SETTLED / 2), {"a": QUIET, "b": USED}) == Plan()
    assert steps(issued("b", age=long), {"a": QUIET, "b": USED}) == Plan(retire="a")


def test_a_login_that_comes_from_the_future_is_replaced():
    """O5: whoever wrote it had a clock that was ahead; by its age it would never be."""
    assert steps(issued(age=-MONTH), {"a": USED}).make == "b"
    assert steps(issued(age=-MONTH), {"a": USED, "b": QUIET}).make == "b"
    assert steps(issued(age=-MONTH), {"a": USED, "b": USED}) == Plan(retire="b")
    assert steps(issued(age=-SETTLED), {"a": USED, "b": QUIET}) == Plan()


def test_what_the_database_lacks_is_made_again():
    assert steps(issued(), {}).make == "a"
    assert steps(issued(), {"a": SHUT, "b": USED}).make == "a"


@given(
    st.sampled_from([None, "a", "b"]),
    st.dictionaries(st.sampled_from(["a", "b"]), st.builds(Seen, open=st.booleans(), connections=st.integers(0, 3))),
    st.timedeltas(timedelta(0), timedelta(days=90)),
    st.sampled_from(["", "x"]),
)
def test_nobody_is_cut_off(slot, there, age, wish):
    """O5: never is a login closed or given another password that the Secret names and that works, or by which somebody is connected."""
    told = None if slot is None else issued(slot, age)
    found = steps(told, there, wish)
    works = slot if slot is not None and slot in there and there[slot].open else None
    assert works is None or works not in {found.make, found.retire}
    assert found.make is None or found.retire is None
    if works is not None and found.make is not None:
        assert found.make == OTHER[works]
        assert found.make not in there or (age >= SETTLED and not there[found.make].connections)
    if found.retire is not None:
        assert age >= SETTLED


def test_a_secret_tells_what_was_written_into_it_and_a_broken_one_nothing():
    pool = {"metadata": {"namespace": "team", "name": "mail", "uid": "u"}}
    made = loginsecret.build(pool, "role", issued("b", wish="x"), {"dsn": "postgresql://u:p@x"})
    assert made["metadata"]["name"] == "poolkeeper-role-mail"
    assert loginsecret.issued(made) == issued("b", wish="x")
    assert (loginsecret.role(made), loginsecret.dsns(made)) == ("role", {"dsn": "postgresql://u:p@x"})
    notes = made["metadata"]["annotations"]
    for broken in (
        None,
        {},
        {**made, "data": {}},
        {**made, "data": {"dsn": "%"}},
        loginsecret.build(pool, "role", issued("b"), {"dsn": "postgresql://u@x"}),
        loginsecret.build(pool, "", issued("b"), {"dsn": "postgresql://u:p@x"}),
        *({**made, "metadata": {"annotations": {**notes, key: "c"}}} for key in (loginsecret.SLOT, loginsecret.SINCE)),
    ):
        assert loginsecret.issued(broken) is None


@pytest.mark.parametrize("direct", [False, True])
def test_pods_are_given_the_pools_secret_in_place_of_the_databases(direct):
    spec = {"dsnSecretRef": {"name": "main"}, **({"directSecretRef": {"name": "main", "key": "d"}} if direct else {})}
    found = loginsecret.mounted(DatabaseSpec.model_validate(spec), "mail")
    assert (found.dsn_secret_ref.name, found.dsn_secret_ref.key) == ("poolkeeper-role-mail", "dsn")
    assert (found.direct_secret_ref is not None) is direct
    assert found.direct_secret_ref is None or found.direct_secret_ref.key == "direct-dsn"


def test_a_verifier_is_that_of_rfc_7677():
    """Its own example, as Postgres stores it: with the server key and the stored key that follow from it."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    assert verifier("pencil", salt) == (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    assert verifier("x") != verifier("x")
    assert len({new_password() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "dsn", ["postgresql://op:old%40@h1:1,h2:2/db?sslmode=verify-full", "host=h port=5432 dbname=db user=op passfile=/x"]
)
def test_a_dsn_for_another_login_leads_to_the_same_place(dsn):
    found = dsn_as(dsn, "role", "pass-word_1")
    assert password_of(found) == "pass-word_1"
    assert "user=role" in found
    assert "old" not in found
    assert "passfile" not in found
    assert ("h1,h2" in found and "sslmode=verify-full" in found) or "host=h " in found
