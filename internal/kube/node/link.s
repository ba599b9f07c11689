// Package node links to functions of upstream by name, which the compiler allows
// only where a package may have parts in assembly. This file is that part.
