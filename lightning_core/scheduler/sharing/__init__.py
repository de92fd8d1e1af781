"""Fair share among the owners of jobs: what each has had, what each may hold now, and a plan for the jobs of each."""
