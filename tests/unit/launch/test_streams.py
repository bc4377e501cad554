"""What ranks print is passed on whole, and it is known whether the end of it still stands last on the screen."""

import os
import threading

import pytest

from drivetrain.launch.streams import KEPT, Relay, Screen, write_all


@pytest.fixture
def screen():
    """A pipe that stands for the user's terminal: descriptor to write to, and a function that reads what is there."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def shown():
        try:
            return os.read(reader, 1 << 20)
        except BlockingIOError:
            return b""

    yield writer, shown
    os.close(reader)
    os.close(writer)


def _relays(target, number):
    one = Screen()
    return [Relay(target, one, keep=True) for _ in range(number)]


def _print(relay, data):
    os.write(relay.writer, data)
    assert relay.pump()


def test_output_is_passed_on_and_the_end_is_kept(screen):
    writer, shown = screen
    (relay,) = _relays(writer, 1)
    os.write(relay.writer, b"one ")
    assert relay.pump() and shown() == b"one "
    os.write(relay.writer, b"two")
    relay.started()  # closes our copy of the writing end
    assert relay.pump() and not relay.pump()
    assert not relay.open and shown() == b"two" and relay.tail == b"one two"
    relay.close()


def test_lines_stay_whole(screen):
    """As a rank without buffering writes them: word by word."""
    writer, shown = screen
    (relay,) = _relays(writer, 1)

    def rank():
        for word in (b"a", b" ", b"b", b"\n"):
            os.write(relay.writer, word)

    thread = threading.Thread(target=rank)
    thread.start()
    assert relay.pump()
    thread.join()
    assert shown() == b"a b\n"
    _print(relay, b"a prompt without an end: ")
    assert shown() == b"a prompt without an end: "
    os.close(relay.writer)
    relay.close()


def test_nothing_to_read_now_is_not_the_end():
    (relay,) = _relays(1, 1)
    os.set_blocking(relay.reader, False)
    assert not relay.pump() and relay.open
    os.close(relay.writer)
    relay.close()


def test_what_stands_last(screen):
    writer, _ = screen
    first, second = _relays(writer, 2)
    _print(first, b"before ")
    _print(first, b"Traceback ")
    _print(first, b"ValueError")
    assert first.stands_last(0) and first.stands_last(7)
    _print(second, b"noise")
    assert not first.stands_last(7) and second.stands_last(0)
    _print(first, b"Traceback ")
    _print(first, b"KeyError")
    assert first.stands_last(27) and not first.stands_last(7)
    _print(second, b"in between")
    _print(first, b" more")
    assert not first.stands_last(27) and first.stands_last(45)
    for relay in (first, second):
        os.close(relay.writer)
        relay.close()


def test_only_so_much_is_kept(screen):
    writer, shown = screen
    (relay,) = _relays(writer, 1)
    for _ in range(KEPT // 4096 + 3):
        _print(relay, b"x" * 4095 + b"\n")
        shown()
    _print(relay, b"the end")
    assert len(relay.tail) == KEPT and relay.tail.endswith(b"the end") and relay.stands_last(KEPT - 7)
    os.close(relay.writer)
    relay.close()


def test_a_reader_that_has_gone_does_not_end_the_run():
    reader, writer = os.pipe()
    os.close(reader)
    write_all(writer, b"nobody reads this")
    os.close(writer)
