// A chart of one series.

import { seriesChart } from "./series_chart.js";

// steps, values: arrays of one length; options as in series_chart.js, and x and superseded.
export function lineChart(steps, values, options) {
  return seriesChart(
    [{ name: options.label || "", steps, values, x: options.x, superseded: options.superseded }],
    options,
  );
}
