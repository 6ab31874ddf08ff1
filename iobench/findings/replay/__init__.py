"""What faster stages would gain, by replaying what a run's loader did."""
