"""Importing the user's application: `module:attribute`, with the reason when that does not work."""

import importlib
import sys
from typing import Any

from poolkeeper.app import Poolkeeper
from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured


def load_app(name: str) -> Poolkeeper:
    """Return the application named `module:attribute`; raises Misconfigured `app_not_importable` with the cause."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise _refusal(name, "expected module:attribute, such as my_agent:app")
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    module = _import(name, module_name)
    app = getattr(module, attribute, None)
    if app is None:
        raise _refusal(
            name, f'module {module_name} has no attribute "{attribute}"; write {attribute} = Poolkeeper() there'
        )
    if not isinstance(app, Poolkeeper):
        raise _refusal(name, f"{attribute} is a {type(app).__name__}, not a Poolkeeper")
    if not app.handlers:
        raise _refusal(name, "no handler is registered; decorate one with @app.task(...)")
    return app


def _import(name: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except Misconfigured:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _refusal(name, f"there is no module {error.name}; install it or run where it lies") from error
        raise _refusal(name, f"importing it failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise _refusal(name, f"importing it failed: {type(error).__name__}: {error}") from error


def _refusal(name: str, problem: str) -> Misconfigured:
    return Misconfigured(Code.APP_NOT_IMPORTABLE, f'application "{name}": {problem}')
