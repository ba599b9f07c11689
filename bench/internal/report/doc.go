// Package report makes a report of records: what was measured, what was not, and
// how certain it is. It is a function of only the records: the same records give
// the same bytes.
//
// Read report.go first, which makes the files, then model.go, which makes their content.
// collect.go gathers what the lines of records say. pool.go decides which trials share a
// row. stats.go, distribution.go, curve.go and fast.go compute figures, and chart.go draws
// them. planned.go reads the plan of a session,
// disturbed.go finds load by other programs, and overview.go puts all systems side by side.
// papers.go lists the papers' figures, amounts.go their amounts, and coverage.go grades how
// far each was measured. answers.go reads the questions that people grade. compare.go
// compares two reports.
package report
