// Package report writes a report about records of package record: what was measured, what
// was not, and how certain the results are. The same records give the same report, byte for
// byte. The package does not measure anything.
//
// Read report.go first, which writes the files, then model.go, which computes their content.
// collect.go collects the trials from the records, and pool.go decides which of them share a
// row. stats.go, distribution.go, curve.go and fast.go compute figures, and chart.go draws
// them. planned.go reads the plan of a session, disturbed.go finds load by other programs,
// and overview.go puts all systems side by side. papers.go lists the papers' figures,
// amounts.go their amounts, and coverage.go grades how far each figure was measured.
// answers.go reads the answers that people grade. compare.go compares two reports.
package report
