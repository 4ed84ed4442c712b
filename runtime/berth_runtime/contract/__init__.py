"""What every engine must do beside an agent, whatever it is, as checks against a running replica.

The tests run them on the engines that run there; `python -m berth_runtime verify-engine` runs them on an operator's own.
"""
