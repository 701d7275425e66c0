"""The tests of the smallest application, by the kit that Poolkeeper brings: `pytest`, or `pytest --poolkeeper-on=both`."""

from hello import app, greet

from poolkeeper.testing import Point

ADA = {"name": "Ada"}


def test_everybody_is_greeted(poolkeeper_kit, capsys):
    done = poolkeeper_kit(app).run(greet, ADA)
    assert done.result == {"greeted": 3}
    assert capsys.readouterr().out.count("Hello Ada") == 3


def test_nobody_is_greeted_again_after_a_crash(poolkeeper_kit, capsys):
    kit = poolkeeper_kit(app)
    task = kit.submit(greet, ADA)
    kit.deliver(task, crash_at=Point.after_checkpoint(2))
    assert kit.finish(task).state == "succeeded"
    assert capsys.readouterr().out.count("Hello Ada") == 3


def test_a_second_delivery_greets_nobody(poolkeeper_kit):
    poolkeeper_kit(app).run_twice(greet, ADA)


def test_it_survives_what_happens_in_production(poolkeeper_kit):
    kit = poolkeeper_kit(app)
    kit.assert_survives_crashes(greet, {"name": "Ada", "times": 1})
    kit.assert_survives_lease(greet, {"name": "Ada", "times": 1})
