"""The end of what a rank said: its last traceback, with what it is chained to, without the noise behind it."""

import pytest

from drivetrain.launch.tail import LINES, last_words

PLAIN = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f()
ValueError: my own error"""
CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
ValueError: my own error"""
CAUSED = CHAINED.replace(
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
PREFIXED = "\n".join(f"[rank1]: {line}" for line in CHAINED.splitlines())
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 1, in <module>
    | ValueError: 1
    +------------------------------------"""
LONG_MESSAGE = PLAIN + "\nwith a second line\n\n  and an indented one"


@pytest.mark.parametrize("words", [PLAIN, CHAINED, CAUSED, PREFIXED, GROUP, LONG_MESSAGE])
def test_the_traceback_is_found_whole(words):
    assert last_words(words + "\n") == (words, 0, True)
    assert last_words("before\n" + words) == (words, 7, True)
    earlier = PLAIN.replace("my own", "an earlier") + "\nlogged\n"
    assert last_words(earlier + words) == (words, len(earlier), True)


@pytest.mark.parametrize(
    "noise",
    [
        "[W1201 07:02:54.763 socket.cpp:207] [c10d] The hostname cannot be retrieved.",
        "Exception ignored in: <function f>",
        "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: leaked\n  warnings.warn('x')",
    ],
)
def test_noise_behind_it_is_left_out(noise):
    assert last_words(f"{PLAIN}\n{noise}\n") == (PLAIN, 0, False)


def test_without_a_traceback_the_last_lines_count():
    assert last_words("") == ("", 0, True)
    assert last_words("usage: x\nx: error: no\n") == ("usage: x\nx: error: no", 0, True)
    lines = [str(number) for number in range(100)]
    words, start, _ = last_words("\n".join(lines))
    assert words.splitlines() == lines[-LINES:] and "\n".join(lines)[start:] == words
