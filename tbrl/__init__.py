"""tbrl: reinforcement learning of tool-using agents from executable database outcomes.

Folders follow the flow of an episode group: tasks -> sandbox / users -> episode -> rewards ->
group -> learner -> weights -> evaluation. Ray is imported only by `actors/`, `controller.py`
and `launch.py`, so everything else runs and is tested without a cluster.
"""

__version__ = "0.1.0"
