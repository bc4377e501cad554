"""The command ``optimum-cli``. Other distributions put modules of theirs beside this one."""

from pkgutil import extend_path

from drivetrain.core.distribution import refuse_others

# Here, since the namespace `optimum` itself is nobody's and has no file that could look.
refuse_others("optimum", __file__)

__path__ = extend_path(__path__, __name__)
