"""Quality and cost of forecasts of loss curves."""
