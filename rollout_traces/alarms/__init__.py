"""What is abnormal for a run: which flags its rows wear, and which incidents it had. Pure functions of its ledgers."""
