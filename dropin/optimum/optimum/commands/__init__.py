"""The command ``optimum-cli``. Other distributions put modules of theirs beside this one."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
