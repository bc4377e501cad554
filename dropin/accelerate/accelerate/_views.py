"""What makes an object look like one of many that share their attributes, without keeping any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, ClassVar

from accelerate._current import Run


class Fact:
    """An attribute that reads the world or the run, unless somebody has set it on the state object."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read, self.__doc__ = read, read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, view: Any, owner: type | None = None) -> Any:
        if view is None:
            return self
        by_hand = view._by_hand()
        return by_hand[self.name] if self.name in by_hand else self.read(view)

    def __set__(self, view: Any, value: Any) -> None:
        view._by_hand()[self.name] = value


class SharedState(MutableMapping):
    """The attributes of a state class as the dictionary that its instances are said to share."""

    def __init__(self, kind: type[View]) -> None:
        self._kind = kind

    def _names(self) -> list[str]:
        if not self._kind._is_open():
            return []
        return [*self._kind._facts(), *(n for n in self._kind._by_hand_of_class() if n not in self._kind._facts())]

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return getattr(object.__new__(self._kind), name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._kind._by_hand_of_class()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._kind._by_hand_of_class()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def clear(self) -> None:
        """Forget the state, as `_reset_state` does."""
        self._kind._forget()

    def __repr__(self) -> str:
        return repr(dict(self))


class _Shared(type):
    """Lets ``PartialState._shared_state`` be looked at, and emptied, on the class."""

    @property
    def _shared_state(cls) -> SharedState:
        return SharedState(cls)  # type: ignore[arg-type]

    @_shared_state.setter
    def _shared_state(cls, value: dict[str, Any]) -> None:
        cls._forget()  # type: ignore[attr-defined]
        cls._by_hand_of_class().update(value)  # type: ignore[attr-defined]


class View(metaclass=_Shared):
    _tied_to: Run | None = None
    _known_attrs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def _is_open(cls) -> bool:
        raise NotImplementedError

    @classmethod
    def _forget(cls) -> None:
        raise NotImplementedError

    @classmethod
    def _by_hand_of_class(cls) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _facts(cls) -> list[str]:
        return [name for base in reversed(cls.__mro__) for name, value in vars(base).items() if isinstance(value, Fact)]

    @classmethod
    def _of(cls, run: Run) -> Any:
        view = object.__new__(cls)
        object.__setattr__(view, "_tied_to", run)
        return view

    @property
    def _shared_state(self) -> SharedState:
        return type(self)._shared_state

    def _by_hand(self) -> dict[str, Any]:
        return type(self)._by_hand_of_class() if self._tied_to is None else self._tied_to.set_by_hand

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), (Fact, property)):
            object.__setattr__(self, name, value)
        else:
            self._by_hand()[name] = value

    def __getattr__(self, name: str) -> Any:
        # Reached for what is not there, and for facts of a state that has been reset.
        by_hand = {} if name.startswith("__") else self._by_hand()
        if name in by_hand:
            return by_hand[name]
        kind = type(self).__name__
        if name in self._known_attrs:
            raise AttributeError(
                f"`{kind}` object has no attribute `{name}`. This happens if `{kind}._reset_state()` was called and no "
                "`Accelerator` or `PartialState` was made after it."
            )
        raise AttributeError(f"'{kind}' object has no attribute '{name}'")
