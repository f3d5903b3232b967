"""kvwitness: who read which KV-cache page, and whose content it held.

The four rooms of the repository (`audit`, `collectors`, `gpu_tracer`, `dashboards`) are installed inside this
package. Names as general as `audit` would collide with a user's own modules, above all inside a serving process
whose working directory comes first on the import path; `docs/layout.md` says how the folders reach this package.
"""

__version__ = "0.1.0"
