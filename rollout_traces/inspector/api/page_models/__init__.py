"""What programs are answered of the pages: the same values that a page's script draws, typed.

A number that is unknown, or not finite, is null. Flags are separated as on the pages: `flags` are abnormal for
the run, `explains` names under each those that it explains, `usual_flags` are usual for the run.
"""
