// Apache ECharts, which the page contains as one script. Its options are not checked.
declare const echarts: any;
