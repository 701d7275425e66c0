"""Settings by which the server would write bound parameters, and with them fencing tokens and payloads, into its log (Q17). Pure.

``log_statement = ddl`` and ``mod`` do no harm: each call of ours is a SELECT. Not known: log shippers and extensions that
are none of pgaudit, auto_explain and pg_stat_statements.
"""

from collections.abc import Mapping
from typing import Any

from poolkeeper.doctor.finding import Finding, ok, warning

_WATCHED = ("log_", "auto_explain.", "pgaudit.", "pg_stat_statements.")


def recorded(settings: Mapping[str, Any]) -> list[str]:
    """Which of these settings record parameters, in words; empty when none does."""
    found = []
    if settings.get("log_parameter_max_length") != "0":
        by = [
            name
            for name in ("log_min_duration_statement", "log_min_duration_sample", "log_transaction_sample_rate")
            if _on(name, settings)
        ]
        by += ["log_statement"] if settings.get("log_statement") == "all" else []
        found += [
            f"{name} = {settings[name]} with log_parameter_max_length = {settings.get('log_parameter_max_length')}"
            for name in by
        ]
    if settings.get("log_parameter_max_length_on_error", "0") != "0":
        found.append(f"log_parameter_max_length_on_error = {settings['log_parameter_max_length_on_error']}")
    if _on("auto_explain.log_min_duration", settings):
        if settings.get("auto_explain.log_parameter_max_length", "0") != "0":
            found.append(f"auto_explain.log_parameter_max_length = {settings['auto_explain.log_parameter_max_length']}")
        if settings.get("auto_explain.log_nested_statements") == "on":
            found.append("auto_explain.log_nested_statements = on, whose plans hold values")
    if settings.get("pgaudit.log_parameter") == "on" and settings.get("pgaudit.log") not in {None, "", "none"}:
        found.append("pgaudit.log_parameter = on")
    return found


def _on(name: str, settings: Mapping[str, Any]) -> bool:
    text = settings.get(name)
    if text is None:
        return False
    if name == "log_transaction_sample_rate":
        return float(text) > 0
    if name == "log_min_duration_sample" and float(settings.get("log_statement_sample_rate") or 1) == 0:
        return False
    return float(text) >= 0


def parameters(facts: Mapping[str, Any]) -> Finding:
    """Of this login, and of every other login of ours whose role or database has settings of its own."""
    settings = facts["server"]["settings"]
    found = recorded(settings)
    for entry in facts["role_settings"]:
        own = {
            name: value
            for name, _, value in (text.partition("=") for text in entry["settings"] or [])
            if name.startswith(_WATCHED)
        }
        who = f'login "{entry["role"]}"' if entry["role"] else "every login"
        found += [f"{what} (of {who})" for what in recorded({**settings, **_plain(own)}) if what not in found]
    if found:
        return warning(
            "recorded parameters",
            f"the server's log holds tokens and payloads by: {'; '.join(found)}",
            "set log_parameter_max_length = 0, log_parameter_max_length_on_error = 0, auto_explain.log_parameter_max_length = 0 and pgaudit.log_parameter = off as they apply, and reload; guard the logs that are there",
        )
    utility = settings.get("pg_stat_statements.track_utility") == "on"
    return ok(
        "recorded parameters",
        "the server records no bound parameters"
        + ("; pg_stat_statements keeps CREATE ROLE … PASSWORD as it was typed" if utility else ""),
    )


_MILLISECONDS = {"ms": 1.0, "s": 1000.0, "min": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}


def _plain(own: Mapping[str, str]) -> dict[str, str]:
    """Settings as they were typed, in the form of pg_settings: numbers without a unit, switches as on and off."""
    made = {}
    for name, text in own.items():
        word = text.strip().lower()
        number, unit = word.rstrip("abcdefghijklmnopqrstuvwxyz "), word.lstrip("+-0123456789. ")
        if number and unit in _MILLISECONDS:
            word = str(float(number) * _MILLISECONDS[unit])
        elif number and unit in {"b", "kb", "mb"}:
            word = number
        made[name] = {"true": "on", "yes": "on", "false": "off", "no": "off"}.get(word, word)
        if name in {
            "log_min_duration_statement",
            "log_min_duration_sample",
            "auto_explain.log_min_duration",
            "log_transaction_sample_rate",
        }:
            made[name] = made[name] if _is_number(made[name]) else "0"
    return made


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
