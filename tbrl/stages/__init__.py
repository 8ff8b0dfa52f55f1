"""The stages of a run, one file each; `registry.STAGES` names them all."""
