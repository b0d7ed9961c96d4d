"""Operations of a client as programs: what to ask of which server, without I/O."""
