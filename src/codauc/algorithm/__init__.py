"""The paper: objective, loss, local steps, rounds, the estimate of alpha, schedules, theory."""
